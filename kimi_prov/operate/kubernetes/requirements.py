"""What a folder needs of a cluster beside what that has: findings, before anything is applied.

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
from kimi_prov.operate.kubernetes.folder import LWS_GROUP, WORKLOADS, component
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
    "gateway.networking.k8s.io": "install the Gateway API and a controller, or render an ingress",
}
_EVERYBODYS = (
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
    """What a cluster has, as far as the user may see it: None is not seen."""

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


def look(folder: Folder) -> Cluster:
    """Ask the cluster. Raises UserError where it is not reached."""
    kubectl = folder.kubectl
    # The first question is the one that tells whether it is reached at all.
    groups = _groups(kubectl.run("get", "--raw", "/apis"))
    seen = kubectl.several(_EVERYBODYS)
    kinds = {
        kind: resource
        for kind, resource in WORKLOADS.items()
        if groups is None or _api(resource) in {name.partition("/")[0] for name in groups}
    }
    own = kubectl.several([*kinds.values(), "pods"], folder.selector)
    wanted = [name for name, _ in secrets(folder)]
    named = {kind: own[resource] or [] for kind, resource in kinds.items()}
    return Cluster(
        groups=groups,
        namespace=_seen(lambda: kubectl.get("namespace", kubectl.namespace) is not None),
        nodes=seen["nodes"],
        storage_classes=seen["storageclasses.storage.k8s.io"],
        ingress_classes=seen["ingressclasses.networking.k8s.io"],
        quotas=[*(seen["resourcequotas"] or ()), *(seen["limitranges"] or ())],
        claims=seen["persistentvolumeclaims"],
        secrets=_seen(lambda: _there(kubectl, wanted)),
        workloads={
            kind: row
            for kind, rows in named.items()
            for row in rows
            if answers.name(row) == folder.name
        },
        pods=len([pod for pod in own["pods"] or () if component(pod) == "engine"]),
        fetching=len([pod for pod in own["pods"] or () if _fetches(pod)]),
    )


def _fetches(pod: Object) -> bool:
    ended = answers.text(pod, "status", "phase") in ("Succeeded", "Failed")
    return component(pod) == "fetch" and not ended


def _api(resource: str) -> str:
    return resource.partition(".")[2]


def _seen(ask: Callable[[], T]) -> T | None:
    """Ask; None where the user may not, or the cluster does not know the kind."""
    try:
        return ask()
    except (ForbiddenError, AbsentError):
        return None


def _groups(told: str) -> frozenset[str] | None:
    try:
        found = json.loads(told)
    except (ValueError, RecursionError):
        return None
    versions = [
        v for group in answers.rows(found, "groups") for v in answers.rows(group, "versions")
    ]
    return frozenset(answers.text(row, "groupVersion") for row in versions)


def _there(kubectl: Kubectl, names: Iterable[str]) -> frozenset[str]:
    """Return which secrets are there; their content stays with kubectl."""
    names = list(names)
    if not names:
        return frozenset()
    told = kubectl.run("get", "secret", *names, "--ignore-not-found", "-o", "name")
    return frozenset(line.removeprefix("secret/") for line in told.split())


def missing(folder: Folder, cluster: Cluster) -> list[Finding]:
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
    _apis(folder, cluster, findings)
    _nodes(folder, cluster, findings)
    _claims(folder, cluster, findings)
    _ingress(folder, cluster, findings)
    _quota(folder, cluster, findings)
    _secrets(folder, cluster, findings)
    for kind, row in cluster.workloads.items():
        if kind != folder.workload["kind"] and answers.whole(row, "spec", "replicas"):
            resource = f"{kind.lower()}/{folder.name}"
            findings.add(
                "cluster.left_over",
                observed=f"{kind} {folder.name}",
                required=f"the {folder.workload['kind']} of the folder alone",
                fix=folder.kubectl.shown("delete", resource),
            )
    return findings.rows()


def _apis(folder: Folder, cluster: Cluster, findings: Findings) -> None:
    if cluster.groups is None:
        return
    wanted: dict[str, list[str]] = {}
    for row in folder.objects:
        if "/" in row["apiVersion"] and row["apiVersion"] not in cluster.groups:
            wanted.setdefault(row["apiVersion"], []).append(row["kind"])
    for version, kinds in wanted.items():
        group = version.partition("/")[0]
        findings.add(
            "cluster.api",
            names={"group": clean_text.clean_line(version)},
            observed="it is not among the groups of the API server",
            required=f"{version}, for {', '.join(dict.fromkeys(kinds))}",
            fix=_GROUPS.get(group, "ask who runs the cluster for it"),
        )


def _nodes(folder: Folder, cluster: Cluster, findings: Findings) -> None:
    template = folder.pod_templates[-1]
    needs = demand(template)
    pods = (1 if folder.replicas is None else folder.replicas) * folder.group_size
    if cluster.nodes is None:
        findings.add(
            "cluster.nodes",
            observed="the user may not list nodes",
            required=written(needs),
            fix=None,
        )
        return
    # What runs has its nodes, one of them cordoned perhaps; and of a pod that waits the scheduler
    # and an autoscaler say more than its nodes of now do.
    if cluster.pods:
        return
    words = ("apply", "--server-side", f"--field-manager={MANAGER}", "-k", str(folder.path))
    go_on = (
        "; where an autoscaler adds them, let it see the pods, and apply again:  "
        f"{folder.kubectl.shown(*words)}"
    )
    usable = [node for node in cluster.nodes if takes(node, template)]
    devices = {name: amount for name, amount in needs.items() if "/" in name}
    # A node may offer devices and be too small: each is told by its own name.
    if devices and sum(room(node, devices) for node in usable) < pods:
        findings.add(
            "cluster.devices",
            names={"resource": " and ".join(devices)},
            observed=_seen_of(cluster.nodes, usable, devices),
            required=f"room for {pods} pods of {written(devices)}",
            fix=_DEVICES + go_on,
        )
    elif sum(room(node, needs) for node in usable) < pods:
        findings.add(
            "cluster.room",
            observed=_seen_of(cluster.nodes, usable, needs),
            required=f"room for {pods} pods of {written(needs)}",
            fix="add larger nodes, or render for these" + go_on,
        )


def _seen_of(nodes: Sequence[Object], usable: Sequence[Object], needs: Amounts) -> str:
    """Write how many nodes there are, and what the largest of those that take the pod has."""
    seen = f"{len(nodes)} nodes, {len(usable)} that take the pod"
    largest = max(usable, key=lambda node: room_score(node, needs), default=None)
    if largest is None:
        return seen
    offers = {name: amount(largest, name) for name in needs}
    return f"{seen}; the largest, {clean_text.clean_line(answers.name(largest))}: {written(offers)}"


def room_score(node: Object, needs: Amounts) -> Fraction:
    """Rank a node by the resource that it lacks most of."""
    shares = [amount(node, name) / need for name, need in needs.items() if need]
    return min(shares, default=Fraction())


def room(node: Object, needs: Amounts) -> int:
    """Return how many pods of these requests an empty node holds."""
    return int(room_score(node, needs)) if needs else 1


def amount(node: Object, name: str) -> Fraction:
    """Return what a node has for pods of a resource."""
    return _quantity(answers.at(node, "status", "allocatable", name)) or Fraction()


def _quantity(value: object) -> Fraction | None:
    try:
        return quota.amount(value, "")
    except UserError:
        return None


def takes(node: Object, template: Object) -> bool:
    """Whether a node takes a pod at all: open, with its labels, and no taint not tolerated."""
    if answers.at(node, "spec", "unschedulable"):
        return False
    labels = answers.mapping(node, "metadata", "labels")
    wanted = answers.mapping(template, "spec", "nodeSelector")
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    tolerations = answers.rows(template, "spec", "tolerations")
    taints = answers.rows(node, "spec", "taints")
    taints = [row for row in taints if row.get("effect") != "PreferNoSchedule"]
    return all(any(_tolerates(row, taint) for row in tolerations) for taint in taints)


def _tolerates(row: Object, taint: Object) -> bool:
    if row.get("effect") not in (None, "", taint.get("effect")):
        return False
    if row.get("operator") == "Exists":
        return row.get("key") in (None, "", taint.get("key"))
    return row.get("key") == taint.get("key") and (row.get("value") or "") == (
        taint.get("value") or ""
    )


def demand(template: Object) -> Amounts:
    """Return what a pod requests: its containers' together, or one before them."""
    spec = answers.mapping(template, "spec")
    total: Amounts = {}
    for row in answers.rows(spec, "containers"):
        for name, value in _requests(row).items():
            total[name] = total.get(name, Fraction()) + value
    for row in answers.rows(spec, "initContainers"):
        for name, value in _requests(row).items():
            total[name] = max(total.get(name, Fraction()), value)
    return total


def _requests(container: Object) -> Amounts:
    resources = answers.mapping(container, "resources")
    # A limit without a request is the request.
    given = {**answers.mapping(resources, "limits"), **answers.mapping(resources, "requests")}
    return {name: value for name, text in given.items() if (value := _quantity(text)) is not None}


def written(amounts: Amounts) -> str:
    """Write amounts of resources for a person."""
    return ", ".join(_written(name, value) for name, value in amounts.items()) or "nothing"


def _written(name: str, value: Fraction) -> str:
    if name.rpartition(".")[2] in ("memory", "storage", "ephemeral-storage"):
        return f"{name} {format_bytes(float(value))}"
    return f"{name} {float(value):g}"


def _claims(folder: Folder, cluster: Cluster, findings: Findings) -> None:
    if cluster.storage_classes is None:
        return
    there = {answers.name(row) for row in cluster.claims or ()}
    known = {answers.name(row) for row in cluster.storage_classes}
    default = [
        row
        for row in cluster.storage_classes
        if answers.text(row, "metadata", "annotations", _DEFAULT_CLASS) == "true"
    ]
    for row in folder.of_kind("PersistentVolumeClaim"):
        # "" asks for a volume that somebody made by hand.
        wanted = answers.at(row, "spec", "storageClassName")
        fits = bool(default) if wanted is None else wanted == "" or wanted in known
        if fits or answers.name(row) in there:
            continue
        findings.add(
            "cluster.storage_class",
            observed="storage classes: " + (", ".join(sorted(known)) or "none"),
            required=f"{wanted or 'a default class'}, for the claim {answers.name(row)}",
            fix="render again with --storage-class",
        )


def _ingress(folder: Folder, cluster: Cluster, findings: Findings) -> None:
    if cluster.ingress_classes is None:
        return
    known = {answers.name(row) for row in cluster.ingress_classes}
    for row in folder.of_kind("Ingress"):
        wanted = answers.text(row, "spec", "ingressClassName")
        if wanted in known or (not wanted and known):
            continue
        findings.add(
            "cluster.ingress_class",
            observed="ingress classes: " + (", ".join(sorted(known)) or "none"),
            required=f"{wanted or 'a class'}, for the ingress {answers.name(row)}",
            fix=f"correct spec.ingressClassName, or install the controller of {wanted or 'one'}",
        )


def _quota(folder: Folder, cluster: Cluster, findings: Findings) -> None:
    # What runs is in `used` already, and is replaced one by one; so is a job that will have ended.
    if cluster.pods or cluster.fetching:
        return
    there = {answers.name(row) for row in cluster.claims or ()}
    claims = [r for r in folder.of_kind("PersistentVolumeClaim") if answers.name(r) not in there]
    try:
        demand = quota.demand_of([folder.workload, *claims])
        clashes = quota.clashes(cluster.quotas, demand)
    except (UserError, KeyError, TypeError, ValueError):
        # A quantity that is none, or a file changed by hand: the server will say it better.
        return
    for clash in clashes:
        findings.add(
            "cluster.quota",
            observed=f"{clash.where}: {clash.observed}",
            required=clash.required,
            fix="ask who runs the cluster for a larger quota, or end what uses it",
        )


def _secrets(folder: Folder, cluster: Cluster, findings: Findings) -> None:
    if cluster.secrets is None or cluster.namespace is False:
        return
    own = {answers.name(row) for row in folder.of_kind("Secret")}
    for name, keys in secrets(folder):
        if name in cluster.secrets or name in own:
            continue
        files = [f"--from-file={key}=FILE" for key in keys or ("KEY",)]
        findings.add(
            "cluster.secret",
            observed=f"no secret {name}",
            required=f"{name} with {', '.join(keys) or 'its keys'}",
            fix=folder.kubectl.shown("create", "secret", "generic", name, *files),
        )


def secrets(folder: Folder) -> list[tuple[str, tuple[str, ...]]]:
    """Return the secrets without which a pod does not start, with the keys that it reads."""
    templates = [*folder.pod_templates]
    if folder.job is not None:
        templates.append(answers.mapping(folder.job, "spec", "template"))
    found: dict[str, dict[str, None]] = {}
    for template in templates:
        for name, keys in _of_template(template):
            if answers.NAME.fullmatch(name):
                found.setdefault(name, {}).update(dict.fromkeys(keys))
    return [(name, tuple(keys)) for name, keys in found.items()]


def _of_template(template: Object) -> Iterator[tuple[str, list[str]]]:
    spec = answers.mapping(template, "spec")
    for volume in answers.rows(spec, "volumes"):
        sources = [("secretName", answers.mapping(volume, "secret"))]
        projected = answers.rows(volume, "projected", "sources")
        sources += [("name", answers.mapping(row, "secret")) for row in projected]
        for key, source in sources:
            if source and source.get("optional") is not True:
                items = [answers.text(row, "key") for row in answers.rows(source, "items")]
                yield answers.text(source, key), items
    for container in [*answers.rows(spec, "containers"), *answers.rows(spec, "initContainers")]:
        for row in answers.rows(container, "env"):
            source = answers.mapping(row, "valueFrom", "secretKeyRef")
            if source and source.get("optional") is not True:
                yield answers.text(source, "name"), [answers.text(source, "key")]
