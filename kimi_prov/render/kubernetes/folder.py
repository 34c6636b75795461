"""The folder of a Kubernetes cluster: every file of it, from a plan and the site's settings."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.render import frame, planned, templates
from kimi_prov.render.frame import File
from kimi_prov.render.kubernetes import pod as pods

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.planner.findings import Finding
    from kimi_prov.planner.settings.parsing import Settings

KIND = "kubernetes"
PLAN = "plan.json"
_TEMPLATES = Path(__file__).resolve().parent / "templates"
_REVISION = 10
_DIGEST = 8
_FETCH_GIB = 4
_PROBE_S = 10
# In this order kustomize names them, and a person reads them.
_ALWAYS = ("pvc.yaml", "fetch-job.yaml", "service.yaml")


def rendered(
    name: str,
    plan: Mapping[str, Any],
    findings: Sequence[Finding],
    settings: Settings,
    facts: Mapping[str, Any],
) -> frame.Rendered:
    """Give the folder's files. Pure: the same input gives the same bytes.

    `plan` and `settings` are those of a pod, `findings` what holds there.
    """
    shown = {**pods.of_image(plan, settings), "findings": findings}
    digest = frame.plan_digest(shown)
    values = _values(name, shown, settings, facts, digest)
    files = [File(PLAN, (clean_text.as_json(shown) + "\n").encode())]
    files += [_from_template(path, values) for path in (*values["resources"], *_BESIDE)]
    return frame.Rendered(KIND, name, digest, files)


_BESIDE = ("kustomization.yaml",)


def _resources(hosts: int) -> list[str]:
    """List the files of objects."""
    return [*_ALWAYS, "leaderworkerset.yaml" if hosts > 1 else "statefulset.yaml"]


def _from_template(path: str, values: Mapping[str, Any]) -> File:
    return File(path, _text(path, values).encode())


def _text(path: str, values: Mapping[str, Any]) -> str:
    """Fill a template in; a line on which nothing was written is none."""
    environment = templates.environment(_TEMPLATES)
    environment.filters["q"] = quoted
    text = environment.get_template(f"{path}.j2").render(values)
    return "".join(line.rstrip() + "\n" for line in text.splitlines() if line.strip())


def quoted(value: object) -> str:
    """Write a text as YAML in quotes, whatever stands in it: JSON's way is YAML's too."""
    return json.dumps(clean_text.line(value), ensure_ascii=False)


def _values(
    name: str,
    plan: Mapping[str, Any],
    settings: Settings,
    facts: Mapping[str, Any],
    digest: str,
) -> dict[str, Any]:
    """Give what the templates say."""
    hosts = int(plan["parallel"]["hosts"])
    pod = pods.of_plan(plan, settings, facts)
    several = hosts > 1
    seccomp = settings.kubernetes_seccomp_profile
    found: dict[str, Any] = {
        "target": clean_text.line(name),
        "name": settings.kubernetes_name,
        "namespace": settings.kubernetes_namespace,
        "image": settings.kubernetes_image,
        "pull_secret": settings.kubernetes_image_pull_secret,
        "storage_class": settings.kubernetes_storage_class,
        "access_mode": access_mode(settings, hosts),
        "cache_volume": settings.kubernetes_cache_volume and not several,
        "node_selector": settings.kubernetes_node_selector,
        "tolerations": tolerations(settings, pod.gpus),
        "runtime_class": settings.kubernetes_runtime_class,
        "gpu_resource": settings.kubernetes_gpu_resource,
        "rdma_resource": settings.kubernetes_rdma_resource if several and pod.gpus else None,
        "seccomp": seccomp,
        "tls": settings.kubernetes_tls,
        "resources": _resources(hosts),
        "plan": plan,
        "plan_digest": digest,
        "engine": plan["engine"],
        "model": plan["model"],
        "hosts": hosts,
        "pod": pod,
        "port": pods.PORT,
        "user": pods.USER,
        "weights_bytes": plan["weights"]["bytes"],
        "volume_gib": pods.volume_gib(plan),
        "source": plan["weights"]["source"],
        "workers": plan["weights"]["workers"],
        "hub_token": str(plan["weights"]["source"]).startswith("hf://"),
        "fetch_gib": _FETCH_GIB,
        "site": planned.download(plan),
        "chat_s": pods.CHAT_S,
        "startup_failures": math.ceil(pod.start_s / _PROBE_S),
        "drains": "--shutdown-timeout" in plan["instances"][0]["argv"],
        "capabilities": capabilities(settings, several=several and pod.gpus > 0),
    }
    found["exceptions"] = found["capabilities"]
    found["fetch_template"] = _text("_fetch.yaml", found).rstrip("\n")
    # A Job cannot be changed: what it does is in its name.
    done = hashlib.sha256(found["fetch_template"].encode()).hexdigest()[:_DIGEST]
    found["fetch_name"] = fetch_name(settings.kubernetes_name, plan["model"]["revision"], done)
    return found


def fetch_name(name: str, revision: str, digest: str) -> str:
    """Name the Job that fetches a revision of the weights by what it does."""
    short = "".join(sign if sign.isalnum() else "-" for sign in revision.lower()[:_REVISION])
    return "-".join(part for part in (name, "fetch", short.strip("-"), digest) if part)


def access_mode(settings: Settings, hosts: int) -> str:
    """Say who mounts the volume of the weights."""
    if settings.kubernetes_access_mode != "auto":
        return settings.kubernetes_access_mode
    return "ReadWriteMany" if hosts > 1 else "ReadWriteOnce"


def tolerations(settings: Settings, gpus: int) -> list[tuple[str, str]]:
    """List the taints that the pods tolerate: key and effect."""
    found = dict(settings.kubernetes_tolerations)
    if gpus:
        found = {settings.kubernetes_gpu_resource: "NoSchedule", **found}
    return list(found.items())


def capabilities(settings: Settings, *, several: bool) -> list[tuple[str, str]]:
    """List the capabilities that the engine gets, each with its reason."""
    if several and settings.kubernetes_rdma_resource:
        return [("IPC_LOCK", "the network cards pin the memory that they read and write.")]
    return []
