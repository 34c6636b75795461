"""Compare what a folder needs with what its cluster has, before anything is applied.

Decides: a rendered folder in a Kubernetes cluster (what the cluster lacks).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

from kimi_prov.contract import clean_text
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.errors import UserError
from kimi_prov.operate.kubernetes import answers
from kimi_prov.operate.kubernetes.folder import LWS_GROUP, WORKLOADS, read_component
from kimi_prov.operate.kubernetes.kubectl import MANAGER, AbsentError, ForbiddenError
from kimi_prov.planner.findings import Findings
from kimi_prov.render.kubernetes import quota

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.operate.kubernetes.answers import Object
    from kimi_prov.operate.kubernetes.folder import Folder
    from kimi_prov.operate.kubernetes.kubectl import Kubectl

Amounts = dict[str, Fraction]
T = TypeVar("T")
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_GROUPS = {
    LWS_GROUP: "install LeaderWorkerSet: https://lws.sigs.k8s.io/docs/installation/",
    "monitoring.coreos.com": "install the Prometheus Operator, or take its files out of "
    "kustomization.yaml",
    "cert-manager.io": "install cert-manager: https://cert-manager.io/docs/installation/, or "
    "render without kimi_kubernetes_issuer and make the certificates' Secrets",
    "gateway.networking.k8s.io": "install the Gateway API and a controller, or render an ingress",
}
_SHARED_KINDS = (
    "nodes",
    "storageclasses.storage.k8s.io",
    "ingressclasses.networking.k8s.io",
    "resourcequotas",
    "limitranges",
    "persistentvolumeclaims",
)
_DEVICES = "install the vendor's device plugin (for NVIDIA the GPU operator), or add nodes"


@dataclass(frozen=True)
class Cluster:
    """What a cluster has; None for what the user may not see."""

    groups: frozenset[str] | None
    namespace: bool | None
    nodes: Sequence[Object] | None
    storage_classes: Sequence[Object] | None
    ingress_classes: Sequence[Object] | None
    quotas: Sequence[Object]
    claims: Sequence[Object] | None
    secrets: frozenset[str] | None
    workloads: Mapping[str, Object]
    # Pods of the engine, and those that fetch and have not ended.
    pods: int
    fetching: int


def observe_cluster(folder: Folder) -> Cluster:
    """Ask the cluster. Raises UserError where it is not reached."""
    kubectl = folder.kubectl
    # The first call shows whether the cluster answers at all.
    groups = _parse_groups(kubectl.run("get", "--raw", "/apis"))
    seen = kubectl.several(_SHARED_KINDS)
    kinds = {
        kind: resource
        for kind, resource in WORKLOADS.items()
        if groups is None or _name_api(resource) in {name.partition("/")[0] for name in groups}
    }
    own = kubectl.several([*kinds.values(), "pods"], folder.selector)
    secret_names = [name for name, _ in list_secrets(folder)]
    named = {kind: own[resource] or [] for kind, resource in kinds.items()}
    return Cluster(
        groups=groups,
        namespace=_ask_if_allowed(lambda: kubectl.get("namespace", kubectl.namespace) is not None),
        nodes=seen["nodes"],
        storage_classes=seen["storageclasses.storage.k8s.io"],
        ingress_classes=seen["ingressclasses.networking.k8s.io"],
        quotas=[*(seen["resourcequotas"] or ()), *(seen["limitranges"] or ())],
        claims=seen["persistentvolumeclaims"],
        secrets=_ask_if_allowed(lambda: _list_present(kubectl, secret_names)),
        workloads={
            kind: row
            for kind, rows in named.items()
            for row in rows
            if answers.read_name(row) == folder.name
        },
        pods=len([pod for pod in own["pods"] or () if read_component(pod) == "engine"]),
        fetching=len([pod for pod in own["pods"] or () if _is_fetching(pod)]),
    )


def _is_fetching(pod: Object) -> bool:
    ended = answers.read_text(pod, "status", "phase") in ("Succeeded", "Failed")
    return read_component(pod) == "fetch" and not ended


def _name_api(resource: str) -> str:
    return resource.partition(".")[2]


def _ask_if_allowed(ask: Callable[[], T]) -> T | None:
    """Ask; None where the user may not, or the cluster does not know the kind."""
    try:
        return ask()
    except (ForbiddenError, AbsentError):
        return None


def _parse_groups(output: str) -> frozenset[str] | None:
    try:
        document = json.loads(output)
    except (ValueError, RecursionError):
        return None
    versions = [
        v
        for group in answers.read_rows(document, "groups")
        for v in answers.read_rows(group, "versions")
    ]
    return frozenset(answers.read_text(row, "groupVersion") for row in versions)


def _list_present(kubectl: Kubectl, names: Iterable[str]) -> frozenset[str]:
    """Return which secrets are there; their content stays with kubectl."""
    names = list(names)
    if not names:
        return frozenset()
    output = kubectl.run("get", "secret", *names, "--ignore-not-found", "-o", "name")
    return frozenset(line.removeprefix("secret/") for line in output.split())


def check_requirements(folder: Folder, cluster: Cluster) -> list[Finding]:
    """Give what the cluster lacks. Pure."""
    findings = Findings()
    if cluster.namespace is False:
        findings.add(
            "cluster.namespace",
            observed=f"no namespace {folder.kubectl.namespace}",
            required="a namespace that is there",
            fix=f"kubectl create namespace {folder.kubectl.namespace}, or name another with "
            "--namespace",
        )
    _check_apis(folder, cluster, findings)
    _check_nodes(folder, cluster, findings)
    _check_claims(folder, cluster, findings)
    _check_ingress(folder, cluster, findings)
    _check_quota(folder, cluster, findings)
    _check_secrets(folder, cluster, findings)
    for kind, row in cluster.workloads.items():
        if kind != folder.workload["kind"] and answers.read_int(row, "spec", "replicas"):
            resource = f"{kind.lower()}/{folder.name}"
            findings.add(
                "cluster.left_over",
                observed=f"{kind} {folder.name}",
                required=f"the {folder.workload['kind']} of the folder alone",
                fix=folder.kubectl.format_command("delete", resource),
            )
    return findings.rows()


def _check_apis(folder: Folder, cluster: Cluster, findings: Findings) -> None:
    if cluster.groups is None:
        return
    resources: dict[str, list[str]] = {}
    for row in folder.objects:
        if "/" in row["apiVersion"] and row["apiVersion"] not in cluster.groups:
            resources.setdefault(row["apiVersion"], []).append(row["kind"])
    for version, kinds in resources.items():
        group = version.partition("/")[0]
        findings.add(
            "cluster.api",
            names={"group": clean_text.clean_line(version)},
            observed="it is not among the groups of the API server",
            required=f"{version}, for {', '.join(dict.fromkeys(kinds))}",
            fix=_GROUPS.get(group, "ask who runs the cluster for it"),
        )


def _check_nodes(folder: Folder, cluster: Cluster, findings: Findings) -> None:
    template = folder.pod_templates[-1]
    needs = sum_requests(template)
    pods = (1 if folder.replicas is None else folder.replicas) * folder.group_size
    if cluster.nodes is None:
        findings.add(
            "cluster.nodes",
            observed="the user may not list nodes",
            required=format_amounts(needs),
            fix=None,
        )
        return
    # Pods that run have their nodes already, even if one is cordoned since. About a pod that
    # waits, the scheduler and an autoscaler know more than the present nodes show.
    if cluster.pods:
        return
    words = ("apply", "--server-side", f"--field-manager={MANAGER}", "-k", str(folder.path))
    go_on = (
        "; where an autoscaler adds them, let it see the pods, and apply again:  "
        f"{folder.kubectl.format_command(*words)}"
    )
    usable = [node for node in cluster.nodes if is_usable(node, template)]
    devices = {name: amount for name, amount in needs.items() if "/" in name}
    # A node may have the devices and be too small otherwise: two findings.
    if devices and sum(count_pods(node, devices) for node in usable) < pods:
        findings.add(
            "cluster.devices",
            names={"resource": " and ".join(devices)},
            observed=_describe_nodes(cluster.nodes, usable, devices),
            required=f"room for {pods} pods of {format_amounts(devices)}",
            fix=_DEVICES + go_on,
        )
    elif sum(count_pods(node, needs) for node in usable) < pods:
        findings.add(
            "cluster.room",
            observed=_describe_nodes(cluster.nodes, usable, needs),
            required=f"room for {pods} pods of {format_amounts(needs)}",
            fix="add larger nodes, or render for these" + go_on,
        )


def _describe_nodes(nodes: Sequence[Object], usable: Sequence[Object], needs: Amounts) -> str:
    """Describe the number of nodes, and the largest one that may run the pod."""
    seen = f"{len(nodes)} nodes, {len(usable)} that take the pod"
    largest = max(usable, key=lambda node: rank_node(node, needs), default=None)
    if largest is None:
        return seen
    offers = {key: read_amount(largest, key) for key in needs}
    name = clean_text.clean_line(answers.read_name(largest))
    return f"{seen}; the largest, {name}: {format_amounts(offers)}"


def rank_node(node: Object, needs: Amounts) -> Fraction:
    """Rank a node by the resource that it lacks most of."""
    shares = [read_amount(node, name) / need for name, need in needs.items() if need]
    return min(shares, default=Fraction())


def count_pods(node: Object, needs: Amounts) -> int:
    """Return how many pods of these requests an empty node holds."""
    return int(rank_node(node, needs)) if needs else 1


def read_amount(node: Object, name: str) -> Fraction:
    """Return what a node has for pods of a resource."""
    return _parse_quantity(answers.read_path(node, "status", "allocatable", name)) or Fraction()


def _parse_quantity(value: object) -> Fraction | None:
    try:
        return quota.parse_amount(value, "")
    except UserError:
        return None


def is_usable(node: Object, template: Object) -> bool:
    """Whether a pod may run on a node: schedulable, labels match, every taint is tolerated."""
    if answers.read_path(node, "spec", "unschedulable"):
        return False
    labels = answers.read_mapping(node, "metadata", "labels")
    selector = answers.read_mapping(template, "spec", "nodeSelector")
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    tolerations = answers.read_rows(template, "spec", "tolerations")
    taints = answers.read_rows(node, "spec", "taints")
    taints = [row for row in taints if row.get("effect") != "PreferNoSchedule"]
    return all(any(_is_tolerated(row, taint) for row in tolerations) for taint in taints)


def _is_tolerated(row: Object, taint: Object) -> bool:
    if row.get("effect") not in (None, "", taint.get("effect")):
        return False
    if row.get("operator") == "Exists":
        return row.get("key") in (None, "", taint.get("key"))
    return row.get("key") == taint.get("key") and (row.get("value") or "") == (
        taint.get("value") or ""
    )


def sum_requests(template: Object) -> Amounts:
    """Return a pod's requests: the sum of its containers, or a larger init container."""
    spec = answers.read_mapping(template, "spec")
    total: Amounts = {}
    for row in answers.read_rows(spec, "containers"):
        for name, value in _read_requests(row).items():
            total[name] = total.get(name, Fraction()) + value
    for row in answers.read_rows(spec, "initContainers"):
        for name, value in _read_requests(row).items():
            total[name] = max(total.get(name, Fraction()), value)
    return total


def _read_requests(container: Object) -> Amounts:
    resources = answers.read_mapping(container, "resources")
    # A limit without a request is the request.
    requests = {
        **answers.read_mapping(resources, "limits"),
        **answers.read_mapping(resources, "requests"),
    }
    return {
        name: value
        for name, text in requests.items()
        if (value := _parse_quantity(text)) is not None
    }


def format_amounts(amounts: Amounts) -> str:
    """Write amounts of resources for a person."""
    return ", ".join(_format_amount(name, value) for name, value in amounts.items()) or "nothing"


def _format_amount(name: str, value: Fraction) -> str:
    if name.rpartition(".")[2] in ("memory", "storage", "ephemeral-storage"):
        return f"{name} {format_bytes(float(value))}"
    return f"{name} {float(value):g}"


def _check_claims(folder: Folder, cluster: Cluster, findings: Findings) -> None:
    if cluster.storage_classes is None:
        return
    there = {answers.read_name(row) for row in cluster.claims or ()}
    known = {answers.read_name(row) for row in cluster.storage_classes}
    default = [
        row
        for row in cluster.storage_classes
        if answers.read_text(row, "metadata", "annotations", _DEFAULT_CLASS) == "true"
    ]
    for row in folder.of_kind("PersistentVolumeClaim"):
        # "" requests a volume that was created by hand.
        storage_class = answers.read_path(row, "spec", "storageClassName")
        fits = (
            bool(default)
            if storage_class is None
            else storage_class == "" or storage_class in known
        )
        if fits or answers.read_name(row) in there:
            continue
        findings.add(
            "cluster.storage_class",
            observed="storage classes: " + (", ".join(sorted(known)) or "none"),
            required=f"{storage_class or 'a default class'}, for the claim "
            f"{answers.read_name(row)}",
            fix="render again with --storage-class",
        )


def _check_ingress(folder: Folder, cluster: Cluster, findings: Findings) -> None:
    if cluster.ingress_classes is None:
        return
    known = {answers.read_name(row) for row in cluster.ingress_classes}
    for row in folder.of_kind("Ingress"):
        ingress_class = answers.read_text(row, "spec", "ingressClassName")
        if ingress_class in known or (not ingress_class and known):
            continue
        findings.add(
            "cluster.ingress_class",
            observed="ingress classes: " + (", ".join(sorted(known)) or "none"),
            required=f"{ingress_class or 'a class'}, for the ingress {answers.read_name(row)}",
            fix=f"correct spec.ingressClassName, or install the controller of "
            f"{ingress_class or 'one'}",
        )


def _check_quota(folder: Folder, cluster: Cluster, findings: Findings) -> None:
    # Pods that run are counted in `used` already and are replaced one by one; a job is, too.
    if cluster.pods or cluster.fetching:
        return
    there = {answers.read_name(row) for row in cluster.claims or ()}
    claims = [
        r for r in folder.of_kind("PersistentVolumeClaim") if answers.read_name(r) not in there
    ]
    try:
        demand = quota.sum_demand([folder.workload, *claims])
        clashes = quota.find_clashes(cluster.quotas, demand)
    except (UserError, KeyError, TypeError, ValueError):
        # An invalid quantity or a file changed by hand: the server explains that better.
        return
    for clash in clashes:
        findings.add(
            "cluster.quota",
            observed=f"{clash.where}: {clash.observed}",
            required=clash.required,
            fix="ask who runs the cluster for a larger quota, or end what uses it",
        )


def _check_secrets(folder: Folder, cluster: Cluster, findings: Findings) -> None:
    if cluster.secrets is None or cluster.namespace is False:
        return
    own = {answers.read_name(row) for row in folder.of_kind("Secret")}
    # cert-manager makes these when the folder is applied.
    own |= {answers.read_text(r, "spec", "secretName") for r in folder.of_kind("Certificate")}
    for name, keys in list_secrets(folder):
        if name in cluster.secrets or name in own:
            continue
        files = [f"--from-file={key}=FILE" for key in keys or ("KEY",)]
        findings.add(
            "cluster.secret",
            observed=f"no secret {name}",
            required=f"{name} with {', '.join(keys) or 'its keys'}",
            fix=folder.kubectl.format_command("create", "secret", "generic", name, *files),
        )


def list_secrets(folder: Folder) -> list[tuple[str, tuple[str, ...]]]:
    """Return the secrets without which a pod does not start, with the keys that it reads."""
    templates = [*folder.pod_templates]
    if folder.job is not None:
        templates.append(answers.read_mapping(folder.job, "spec", "template"))
    by_secret: dict[str, dict[str, None]] = {}
    for template in templates:
        for name, keys in _list_template_secrets(template):
            if answers.NAME.fullmatch(name):
                by_secret.setdefault(name, {}).update(dict.fromkeys(keys))
    return [(name, tuple(keys)) for name, keys in by_secret.items()]


def _list_template_secrets(template: Object) -> Iterator[tuple[str, list[str]]]:
    spec = answers.read_mapping(template, "spec")
    for volume in answers.read_rows(spec, "volumes"):
        sources = [("secretName", answers.read_mapping(volume, "secret"))]
        projected = answers.read_rows(volume, "projected", "sources")
        sources += [("name", answers.read_mapping(row, "secret")) for row in projected]
        for key, source in sources:
            if source and source.get("optional") is not True:
                items = [
                    answers.read_text(row, "key") for row in answers.read_rows(source, "items")
                ]
                yield answers.read_text(source, key), items
    for container in [
        *answers.read_rows(spec, "containers"),
        *answers.read_rows(spec, "initContainers"),
    ]:
        for row in answers.read_rows(container, "env"):
            source = answers.read_mapping(row, "valueFrom", "secretKeyRef")
            if source and source.get("optional") is not True:
                yield answers.read_text(source, "name"), [answers.read_text(source, "key")]
