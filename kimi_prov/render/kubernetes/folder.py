"""The folder of a Kubernetes cluster: every file of it, from a plan and the site's settings.

Decides: objects for a Kubernetes cluster.
Held by: tests/unit/render/test_kubernetes_render.py,
  tests/component/render/test_kubernetes_objects.py.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kimi_prov.contract import clean_text, paths
from kimi_prov.contract import pod as contract
from kimi_prov.contract.rendered_kinds import KUBERNETES
from kimi_prov.errors import UserError
from kimi_prov.monitoring import series
from kimi_prov.render import folder_writer, planned, templates
from kimi_prov.render.folder_writer import File
from kimi_prov.render.kubernetes import access, dashboard, images, measured, quota
from kimi_prov.render.kubernetes import pod as pods

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.planner.settings.parsing import Settings

_BUNDLE = "ca-bundle.pem"
_TEMPLATES = Path(__file__).resolve().parent / "templates"
_REVISION = 10
_DIGEST = 8
_PROBE_S = 10
_WEB_PORT = 8080
# A time to the first token is slow above this multiple of the planned one, and above these seconds.
_SLOW = 10
_MIN_SLOW_S = 10
# etcd takes no larger object; the longest part of a plan is the manifest of the weights.
_MAX_CONFIG_MAP_BYTES = 1_000_000
_PORTS = {"http": 80, "https": 443}
_HUB_PORT = 443
# The order in kustomization.yaml, for a reader.
_ALWAYS = ("pvc.yaml", "fetch-job.yaml", "service.yaml", "networkpolicy.yaml", "pdb.yaml")
_MONITORING = ("servicemonitor.yaml", "rules.yaml", "dashboard.yaml")
_OTHER_FILES = ("kustomization.yaml", "README.md")


def render_folder(
    name: str,
    plan: MachinePlan,
    findings: Sequence[Finding],
    settings: Settings,
    facts: Facts,
    least: quota.Least,
) -> folder_writer.RenderedFolder:
    """Give the folder's files. Pure: the same input gives the same bytes.

    `plan` and `settings` are those of a pod, `findings` what holds there. Raises UserError for a
    plan that no ConfigMap holds.
    """
    shown: MachinePlan = {**pods.adapt_to_image(plan, settings), "findings": [*findings]}
    digest = folder_writer.compute_plan_digest(shown)
    values = _make_values(name, shown, settings, facts, digest, least)
    files = [File(folder_writer.PLAN, (clean_text.as_json(shown) + "\n").encode())]
    if settings.ca_bundle:
        files.append(File(_BUNDLE, Path(settings.ca_bundle).read_bytes()))
    if sum(len(file.content) for file in files) > _MAX_CONFIG_MAP_BYTES:
        raise UserError(
            f"{folder_writer.PLAN} and {_BUNDLE} have more than {_MAX_CONFIG_MAP_BYTES} "
            "bytes: no ConfigMap holds them",
            fix="name a shorter kimi_weights_manifest or kimi_ca_bundle",
        )
    files += [_render_file(path, values) for path in (*values["resources"], *_OTHER_FILES)]
    return folder_writer.RenderedFolder(KUBERNETES, name, digest, files)


def render_objects(
    name: str, plan: MachinePlan, settings: Settings, facts: Facts, least: quota.Least
) -> dict[str, bytes]:
    """Give only the files of objects, before quotas are checked."""
    files = render_folder(name, plan, [], settings, facts, least).files
    return {file.path: file.content for file in files if file.path.endswith(".yaml")}


def _list_resources(plan: MachinePlan, settings: Settings) -> list[str]:
    """List the files of objects."""
    several = plan["parallel"]["hosts"] > 1
    names = [*_ALWAYS, "leaderworkerset.yaml" if several else "statefulset.yaml"]
    if settings.kubernetes_issuer or settings.kubernetes_internal_issuer:
        names.append("certificates.yaml")
    if settings.kubernetes_ingress_class:
        names.append("ingress.yaml")
    elif settings.kubernetes_gateway_class:
        names.append("gateway.yaml")
    if settings.kubernetes_monitoring_namespace:
        # The rules and the dashboard read vLLM's metrics.
        names += _MONITORING[:1] if contract.is_proxied(plan) else _MONITORING
    if plan["web"]:
        names.append("web.yaml")
    if settings.kubernetes_stop_schedule or settings.kubernetes_start_schedule:
        names.append("schedule.yaml")
    return names


def _render_file(path: str, values: Mapping[str, Any]) -> File:
    text = _render_text(path, values)
    if path.endswith(".yaml"):
        # Drop lines that a template left empty.
        text = "".join(line.rstrip() + "\n" for line in text.splitlines() if line.strip())
    return File(path, text.encode())


def _render_text(path: str, values: Mapping[str, Any]) -> str:
    environment = templates.make_environment(_TEMPLATES)
    environment.filters["q"] = quote_yaml
    return environment.get_template(f"{path}.j2").render(values)


def quote_yaml(value: object) -> str:
    """Write a text as quoted YAML, whatever it holds: JSON is YAML."""
    return json.dumps(clean_text.clean_line(value), ensure_ascii=False)


def _make_settings_values(settings: Settings, hosts: int, pod: pods.Pod) -> dict[str, Any]:
    """Give what the templates say of the settings alone."""
    several, namespace = hosts > 1, settings.kubernetes_namespace
    return {
        "name": settings.kubernetes_name,
        "namespace": namespace,
        "place": namespace or "NAMESPACE",
        "image": settings.kubernetes_image,
        "pull_secret": settings.kubernetes_image_pull_secret,
        "storage_class": settings.kubernetes_storage_class,
        "access_mode": access.choose_mode(settings, hosts),
        "cache_volume": settings.kubernetes_cache_volume and not several,
        "node_selector": settings.kubernetes_node_selector,
        "tolerations": access.list_tolerations(settings, pod.gpus),
        "runtime_class": settings.kubernetes_runtime_class,
        "gpu_resource": settings.kubernetes_gpu_resource,
        "rdma_resource": settings.kubernetes_rdma_resource if several and pod.gpus else None,
        "seccomp": settings.kubernetes_seccomp_profile,
        "tls": settings.kubernetes_tls,
        "hostname": settings.kubernetes_hostname,
        **access.make_certificate_values(settings),
        "ingress_class": settings.kubernetes_ingress_class,
        "gateway_class": settings.kubernetes_gateway_class,
        "annotations": access.make_ingress_annotations(settings, tls=settings.kubernetes_tls),
        "ingress_namespace": settings.kubernetes_ingress_namespace,
        "monitoring_namespace": settings.kubernetes_monitoring_namespace,
        "allowed_networks": settings.allowed_networks,
    }


def _make_values(
    name: str, plan: MachinePlan, settings: Settings, facts: Facts, digest: str, least: quota.Least
) -> dict[str, Any]:
    """Return the values of the templates."""
    hosts = int(plan["parallel"]["hosts"])
    pod = pods.size_pod(plan, settings, facts)
    several = hosts > 1
    namespace = settings.kubernetes_namespace
    values: dict[str, Any] = {
        **_make_settings_values(settings, hosts, pod),
        "target": clean_text.clean_line(name),
        "resources": _list_resources(plan, settings),
        "bundle": bool(settings.ca_bundle),
        "plan": plan,
        "plan_digest": digest,
        "plan_map": f"{settings.kubernetes_name}-plan-{digest[:_DIGEST]}",
        "findings": [row for row in plan["findings"] if row["severity"] != "pass"],
        "engine": plan["engine"],
        "image_commands": images.make_commands(plan["engine"], str(settings.kubernetes_image)),
        "model": plan["model"],
        "hosts": hosts,
        "pod": pod,
        "port": contract.PORT,
        "proxied": contract.is_proxied(plan),
        "user": contract.USER_ID,
        "weights_bytes": plan["weights"]["bytes"],
        "volume_gib": pods.count_volume_gib(plan),
        "marks": " ".join(_list_marks(plan)),
        "source": plan["weights"]["source"],
        "weights_digest": folder_writer.compute_plan_digest(plan["weights"]),
        "workers": plan["weights"]["workers"],
        "hub_token": str(plan["weights"]["source"]).startswith("hf://"),
        "fetch_cpus": pods.count_fetch_cpus(plan, facts),
        "fetch_gib": pods.FETCH_BYTES >> 30,
        "fetch_ports": _list_fetch_ports(plan),
        "site": planned.download(plan),
        "chat_s": pods.CHAT_S,
        "startup_failures": math.ceil(pod.start_s / _PROBE_S),
        "drains": "--shutdown-timeout" in plan["instances"][0]["argv"],
        "concurrency": plan["throughput"]["concurrency"],
        "slow_first_token_s": _choose_slow_threshold(plan),
        "signal": measured.make_signal,
        "latency": measured.make_latency,
        "first_token": series.FIRST_TOKEN,
        "job": dashboard.make_selector(settings.kubernetes_name, namespace),
        "dashboard": dashboard.make_document(settings.kubernetes_name, namespace),
        "schedules": _list_schedules(settings),
        "time_zone": settings.kubernetes_time_zone,
        "kubectl_image": settings.kubernetes_kubectl_image,
        "workload": _describe_workload(several=several),
        "least": least,
    }
    values |= _make_web_values(plan, settings)
    values["fetch_template"] = _render_text("_fetch.yaml", values).rstrip("\n")
    # A Job cannot be changed, so its name says what it does.
    done = hashlib.sha256(values["fetch_template"].encode()).hexdigest()[:_DIGEST]
    values["fetch_name"] = name_fetch_job(settings.kubernetes_name, plan["model"]["revision"], done)
    return values


def _describe_workload(*, several: bool) -> dict[str, str]:
    """Return the kind and words of the workload that is scaled."""
    if several:
        group, plural = "leaderworkerset.x-k8s.io", "leaderworkersets"
        return {"group": group, "plural": plural, "resource": f"{plural}.{group}"}
    return {"group": "apps", "plural": "statefulsets", "resource": "statefulset"}


def _list_schedules(settings: Settings) -> list[dict[str, Any]]:
    rows = [
        ("stop", settings.kubernetes_stop_schedule, 0),
        ("start", settings.kubernetes_start_schedule, 1),
    ]
    return [{"name": name, "at": at, "replicas": replicas} for name, at, replicas in rows if at]


def _list_marks(plan: MachinePlan) -> list[str]:
    """List the files that mark verified weights: the model's and its draft's."""
    weights = plan["weights"]
    parts = [weights, *([weights["draft"]] if weights["draft"] else [])]
    return [f"{part['dir']}/{paths.MODEL_VERIFIED}" for part in parts]


def _choose_slow_threshold(plan: MachinePlan) -> int:
    """Return the seconds to the first token from which a request counts as slow."""
    expected = plan["throughput"]["ttft_s"]["expected"] or 0
    return max(_MIN_SLOW_S, math.ceil(_SLOW * expected))


def _list_fetch_ports(plan: MachinePlan) -> list[int]:
    """List the TCP ports that the fetching pod connects to."""
    addresses = [str(plan["weights"]["source"]), *(value for _, value in planned.download(plan))]
    ports = set()
    for address in addresses:
        parts = urlsplit(address)
        if parts.scheme in _PORTS:
            ports.add(parts.port or _PORTS[parts.scheme])
        elif parts.scheme == "hf":
            ports.add(_HUB_PORT)
    return sorted(ports)


def _make_web_values(plan: MachinePlan, settings: Settings) -> dict[str, Any]:
    """Return the web UI's values of the templates; `web` is None where there is none."""
    web = plan["web"]
    if not web:
        return {"web": None, "web_hostname": None, "page_command": None}
    scheme = "https" if settings.kubernetes_tls else "http"
    environment = {
        **web["environment"],
        "HOST": "0.0.0.0",  # noqa: S104  (of the pod, behind its NetworkPolicy)
        "PORT": str(_WEB_PORT),
        "DATA_DIR": "/data",
        "HOME": "/data",
        "STATIC_DIR": "/run/kimi-web/static",
        # The Ingress is a pod, whose address is not known beforehand.
        "FORWARDED_ALLOW_IPS": "*",
        "OPENAI_API_BASE_URL": f"{scheme}://{settings.kubernetes_name}:{contract.PORT}/v1",
        **({"SSL_CERT_FILE": "/etc/kimi/ca.crt"} if settings.kubernetes_tls else {}),
    }
    # The web UI itself speaks no TLS.
    plain = access.make_ingress_annotations(settings, tls=False)
    return {
        "web": web,
        "web_hostname": settings.kubernetes_web_hostname,
        "page_command": access.make_page_command(settings),
        "page_url": access.PAGE_URL,
        "web_port": _WEB_PORT,
        "web_image": access.name_web_image(web, settings),
        "web_environment": sorted(environment.items()),
        "web_annotations": plain,
    }


def name_fetch_job(name: str, revision: str, digest: str) -> str:
    """Return the name of the Job that fetches a revision of the weights."""
    short = "".join(sign if sign.isalnum() else "-" for sign in revision.lower()[:_REVISION])
    return "-".join(part for part in (name, "fetch", short.strip("-"), digest) if part)
