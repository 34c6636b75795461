"""Compare the rendered objects with a namespace's ResourceQuotas and LimitRanges.

Decides: objects for a Kubernetes cluster (quotas).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from kimi_prov import documents
from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.render.kubernetes import described_quota

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from kimi_prov.render.kubernetes.described_quota import ClusterObject

_MAX_BYTES = 1 << 20
_MAX_NAMES = 8
FIX = (
    "kubectl get resourcequota,limitrange --namespace NAMESPACE -o yaml > quota.yaml  writes such "
    "a file"
)
# Between two documents of a file.
_BETWEEN = re.compile(r"(?m)^---[ \t]*(?:#.*)?$")
_QUANTITY = re.compile(r"([+-]?(?:[0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30}))(.*)")
# A device's resource, as DOMAIN/NAME.
_DEVICE = re.compile(r"[a-z0-9][a-z0-9.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]{1,2})")
_SUFFIXES = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18, "m": -3, "u": -6, "n": -9}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
# A quota with one of these scopes counts no pod of ours: ours are Guaranteed, run without a
# deadline and have no priority class.
_NOT_OURS = frozenset({"BestEffort", "Terminating", "PriorityClass", "CrossNamespacePodAffinity"})
_MIN_DEVICES_FIX = (
    "ask the administrator to remove this minimum: the containers beside the engine take no GPU"
)
# Other names under which a quota counts a pod's requests.
_REQUESTED = {"cpu": "requests.cpu", "memory": "requests.memory"}


@dataclass(frozen=True)
class Container:
    """The requests of one container, by resource; its limits are equal."""

    name: str
    pod: str
    resources: Mapping[str, Fraction]


@dataclass(frozen=True)
class Demand:
    """All that the rendered objects take of a namespace.

    `containers`: each with the number of pods that have it. `first`: the init containers, which
    request less than the containers after them and so add nothing to a sum. `claims`: bytes and
    storage class of each volume. `objects`: how many of each kind, as `count/` names them.
    """

    containers: Sequence[tuple[Container, int]]
    first: Sequence[Container]
    claims: Sequence[tuple[str, Fraction, str | None]]
    objects: Mapping[str, int]

    def count_for(self, key: str) -> Fraction | None:
        """Return the demand for a quota's key; None where no object of ours counts for it."""
        key = _REQUESTED.get(key, key)
        if key == "pods":
            return Fraction(sum({row.pod: count for row, count in self.containers}.values()))
        if key.startswith(("requests.", "limits.")) and key != "requests.storage":
            return self._summed(key.partition(".")[2])
        if key in ("requests.storage", "persistentvolumeclaims"):
            return self._stored(key, None)
        name, mark, rest = key.partition(".storageclass.storage.k8s.io/")
        if mark:
            return self._stored(rest, name)
        if key.startswith("count/"):
            return Fraction(self.objects.get(key.removeprefix("count/").partition(".")[0], 0))
        return Fraction(self.objects[key]) if key in self.objects else None

    def list_pods(self) -> Iterator[tuple[str, Mapping[str, Fraction]]]:
        """Give each pod's name with the sum of its containers, by resource."""
        summed: dict[str, dict[str, Fraction]] = {}
        for row, _ in self.containers:
            own = summed.setdefault(row.pod, {})
            for resource, value in row.resources.items():
                own[resource] = own.get(resource, Fraction(0)) + value
        yield from summed.items()

    def _summed(self, resource: str) -> Fraction:
        rows = self.containers
        return sum((row.resources.get(resource, Fraction(0)) * n for row, n in rows), Fraction(0))

    def _stored(self, key: str, of_class: str | None) -> Fraction:
        rows = [row for row in self.claims if of_class is None or row[2] == of_class]
        sizes = [row[1] for row in rows]
        return sum(sizes, Fraction(0)) if key == "requests.storage" else Fraction(len(rows))


def _is_uncounted(key: str) -> bool:
    """Whether Kubernetes takes a key and counts nothing for it: limits of a device's resource."""
    return key.startswith("limits.") and "/" in key


@dataclass(frozen=True)
class Clash:
    """What does not fit: `grave` if it never fits, else other objects take the room now.

    `fix`: what helps, where it is no matter of room.
    """

    where: str
    observed: str
    required: str
    grave: bool
    fix: str = ""


def read(paths: Sequence[Path], namespace: str | None) -> list[ClusterObject]:
    """Read quotas and ranges of files. Raises UserError for files that hold none."""
    rows = []
    for path in paths:
        others: list[str] = []
        there = list(_list_objects(path, others))
        if not there:
            instead = f", but {', '.join(others[:_MAX_NAMES])}" if others else ""
            raise UserError(
                f"{path}: there is no ResourceQuota and no LimitRange in it{instead}", fix=FIX
            )
        for row in there:
            other = _read_text(row, "metadata", "namespace")
            if namespace and other and other != namespace:
                raise UserError(
                    f"{path}: {_name_object(row)} is of namespace {clean_text.clean_line(other)}, "
                    f"and the objects are rendered for {namespace}",
                    fix=FIX,
                )
        rows += there
    return rows


def _list_objects(path: Path, others: list[str]) -> Iterator[ClusterObject]:
    """Give quotas and ranges; `others` gets the kinds of what else is there."""
    document = documents.read_document(path, what="a file of quotas", limit=_MAX_BYTES, fix=FIX)
    if described_quota.is_described(document.text):
        yield from described_quota.read_described(document.text)
        return
    for part in _BETWEEN.split(document.text):
        if not part.strip():
            continue
        content = documents.Document(document.name, part).yaml(FIX)
        if content is None:
            continue
        if not isinstance(content, dict):
            raise UserError(f"{path}: this is no object of Kubernetes", fix=FIX)
        for item in _list_items(content):
            known = _convert(item)
            if known:
                yield known
            else:
                others.append(clean_text.clean_line(item.get("kind"))[:80])


def _convert(item: ClusterObject) -> ClusterObject | None:
    """Return a quota in Kubernetes' own form; None for what is no quota and no range.

    OpenShift has quotas over several namespaces; Kubeflow's Profile makes one in its namespace.
    """
    kind, spec = item.get("kind"), _read_mapping(item, "spec")
    if kind in ("ResourceQuota", "LimitRange"):
        return item
    if kind in ("ClusterResourceQuota", "AppliedClusterResourceQuota"):
        status = _read_mapping(_read_mapping(item, "status"), "total")
        return {**item, "spec": _read_mapping(spec, "quota"), "status": status}
    if kind == "Profile" and "resourceQuotaSpec" in spec:
        name = _read_text(item, "metadata", "name")
        metadata = {"name": name, "namespace": name}
        return {
            "kind": kind,
            "metadata": metadata,
            "spec": _read_mapping(spec, "resourceQuotaSpec"),
        }
    return None


def _list_items(content: ClusterObject) -> Iterator[ClusterObject]:
    """Give the objects of a list; in a ResourceQuotaList they name no kind of their own."""
    kind, items = str(content.get("kind")), content.get("items")
    if not kind.endswith("List"):
        yield content
        return
    for item in items if isinstance(items, list) else []:
        if isinstance(item, dict):
            yield {"kind": kind.removesuffix("List"), **item}


def _read_text(row: Mapping[str, Any], *keys: str) -> str:
    value: Any = row
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


def _name_object(row: ClusterObject) -> str:
    return clean_text.clean_line(
        f"{row['kind']} {_read_text(row, 'metadata', 'name') or 'without a name'}"
    )


def parse_amount(value: object, where: str) -> Fraction:
    """Read a quantity such as 500m, 64Gi or 1e3. Raises UserError, which names `where`."""
    text = str(value).strip() if isinstance(value, (str, int, float)) else ""
    match = _QUANTITY.fullmatch(text)
    if match and not isinstance(value, bool):
        quantity, suffix = Fraction(match.group(1)), match.group(2)
        if suffix in _BINARY:
            return quantity * (1 << _BINARY[suffix])
        if suffix in _SUFFIXES:
            return quantity * Fraction(10) ** _SUFFIXES[suffix]
        if exponent := _EXPONENT.fullmatch(suffix):
            return quantity * Fraction(10) ** int(exponent.group(1))
    raise UserError(
        f"{where}: expected a quantity such as 500m or 64Gi, found "
        f"{clean_text.clean_line(value)[:40]!r}",
        fix=FIX,
    )


def format_amount(key: str, value: Fraction) -> str:
    """Write a quantity of a key for a person."""
    if "memory" in key or "storage" in key:
        return f"{float(value / (1 << 30)):.5g}Gi"
    return f"{float(value):.5g}"


def find_clashes(rows: Sequence[ClusterObject], demand: Demand) -> list[Clash]:
    """Return where the demand exceeds a quota or range. Raises UserError for an invalid one."""
    clashes: list[Clash] = []
    for row in rows:
        check = _check_range if row["kind"] == "LimitRange" else _check_quota
        clashes += check(row, demand)
    return clashes


@dataclass(frozen=True)
class Least:
    """The least that the ranges of a namespace let a container request: CPUs and bytes.

    `devices`: resources of devices that a range names. A container that names none of them would
    get the range's default, a GPU say, or be refused: each says that it takes none.
    """

    cpus: Fraction = Fraction(0)
    memory: Fraction = Fraction(0)
    devices: Sequence[str] = ()

    def cpu(self, text: str) -> str:
        """Return a request for CPUs, raised to the least."""
        least = self.cpus > parse_amount(text, "cpu")
        return f"{math.ceil(self.cpus * 1000)}m" if least else text

    def none(self, *taken: str) -> str:
        """Return, in YAML's flow, that a container takes no device but those that it has."""
        return "".join(f', {name}: "0"' for name in self.devices if name not in taken)

    def mem(self, text: str) -> str:
        """Return a request for memory, raised to the least."""
        least = self.memory > parse_amount(text, "memory")
        return f"{math.ceil(self.memory / (1 << 20))}Mi" if least else text


_SIDES = ("min", "max", "default", "defaultRequest")


def find_least(rows: Sequence[ClusterObject]) -> Least:
    """Return the least of all ranges for containers and for pods of one container."""
    bounds: dict[str, list[Fraction]] = {"cpu": [Fraction(0)], "memory": [Fraction(0)]}
    devices: set[str] = set()
    for row in rows:
        limits = _read_mapping(row, "spec").get("limits") if row["kind"] == "LimitRange" else None
        for limit in limits if isinstance(limits, list) else []:
            if isinstance(limit, dict) and limit.get("type") in ("Container", "Pod"):
                for key, value in _read_mapping(limit, "min").items():
                    where = clean_text.clean_line(f"{_name_object(row)}: min: {key}")
                    bounds.setdefault(str(key), []).append(parse_amount(value, where))
                named = (str(key) for side in _SIDES for key in _read_mapping(limit, side))
                devices |= {key for key in named if _DEVICE.fullmatch(key)}
    return Least(max(bounds["cpu"]), max(bounds["memory"]), sorted(devices))


def _check_quota(row: Mapping[str, Any], demand: Demand) -> Iterator[Clash]:
    spec = _read_mapping(row, "spec")
    if _list_scopes(spec) & _NOT_OURS:
        return
    used = _read_mapping(_read_mapping(row, "status"), "used")
    for key, value in _read_mapping(spec, "hard").items():
        where = clean_text.clean_line(f"{_name_object(row)}: {key}")
        hard = parse_amount(value, where)
        if _is_uncounted(str(key)):
            yield from _warn_uncounted(str(key), hard, where, demand)
            continue
        taken = demand.count_for(str(key))
        if not taken:
            continue
        others = parse_amount(used[key], where) if key in used else Fraction(0)
        if taken > hard:
            yield Clash(
                where, format_amount(str(key), hard), format_amount(str(key), taken), grave=True
            )
        elif taken > hard - others:
            left = (
                f"{format_amount(str(key), hard - others)} of {format_amount(str(key), hard)} left"
            )
            yield Clash(where, left, format_amount(str(key), taken), grave=False)


def _warn_uncounted(key: str, hard: Fraction, where: str, demand: Demand) -> Iterator[Clash]:
    name = key.removeprefix("limits.")
    taken = demand.count_for(f"requests.{name}")
    if taken and taken > hard:
        yield Clash(
            where,
            format_amount(key, hard),
            format_amount(key, taken),
            grave=False,
            fix=f"ask the administrator: Kubernetes counts requests.{name} alone, and HAMi's "
            "scheduler counts this",
        )


def _list_scopes(spec: Mapping[str, Any]) -> set[str]:
    scopes = spec.get("scopes")
    names = {str(scope) for scope in scopes} if isinstance(scopes, list) else set()
    selected = _read_mapping(spec, "scopeSelector").get("matchExpressions")
    for row in selected if isinstance(selected, list) else []:
        if isinstance(row, dict) and row.get("operator") in ("In", "Exists"):
            names.add(str(row.get("scopeName")))
    return names


def _check_range(row: Mapping[str, Any], demand: Demand) -> Iterator[Clash]:
    limits = _read_mapping(row, "spec").get("limits")
    for limit in limits if isinstance(limits, list) else []:
        if not isinstance(limit, dict):
            continue
        kind = str(limit.get("type"))
        for name, resources in _list_range_subjects(kind, demand):
            for side, sign in (("max", 1), ("min", -1)):
                for key, value in _read_mapping(limit, side).items():
                    where = clean_text.clean_line(f"{_name_object(row)}: {side} of a {kind}: {key}")
                    bound = parse_amount(value, where)
                    taken = resources.get(str(key))
                    if taken is not None and sign * (taken - bound) > 0:
                        description = f"{format_amount(str(key), taken)} ({name})"
                        least = side == "min" and _DEVICE.fullmatch(str(key))
                        fix = _MIN_DEVICES_FIX if least else ""
                        yield Clash(
                            where, format_amount(str(key), bound), description, grave=True, fix=fix
                        )


def _list_range_subjects(kind: str, demand: Demand) -> list[tuple[str, Mapping[str, Fraction]]]:
    """Give the objects that a range of this type limits: a pod counts its containers together."""
    if kind == "Pod":
        return list(demand.list_pods())
    if kind == "Container":
        rows = [*(row for row, _ in demand.containers), *demand.first]
        return [(row.name, row.resources) for row in rows]
    if kind == "PersistentVolumeClaim":
        return [(name, {"storage": size}) for name, size, _ in demand.claims]
    return []


def _read_mapping(value: object, key: str) -> Mapping[str, Any]:
    result = value.get(key) if isinstance(value, dict) else None
    return result if isinstance(result, dict) else {}


def sum_demand(objects: Sequence[ClusterObject]) -> Demand:
    """Sum up rendered objects: everything at once, as when the model is first applied."""
    containers: list[tuple[Container, int]] = []
    first: list[Container] = []
    claims: list[tuple[str, Fraction, str | None]] = []
    count: dict[str, int] = {}
    for row in objects:
        kind, spec = str(row["kind"]), row.get("spec") or {}
        plural = _PLURALS.get(kind, f"{kind.lower()}s")
        count[plural] = count.get(plural, 0) + 1
        name = str(row["metadata"]["name"])
        if kind == "PersistentVolumeClaim":
            size = parse_amount(spec["resources"]["requests"]["storage"], name)
            claims.append((name, size, spec.get("storageClassName")))
        for template, pods in _list_templates(kind, spec):
            pod = template["spec"]
            containers += [(_read_container(name, part), pods) for part in pod["containers"]]
            first += [_read_container(name, part) for part in pod.get("initContainers", [])]
    return Demand(containers, first, claims, count)


def _read_container(name: str, part: Mapping[str, Any]) -> Container:
    limits = part["resources"]["limits"]
    rows = {str(key): parse_amount(value, name) for key, value in limits.items()}
    return Container(f"{name}: {part['name']}", name, rows)


_PLURALS = {"NetworkPolicy": "networkpolicies", "Ingress": "ingresses"}


def _list_templates(kind: str, spec: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], int]]:
    if kind == "LeaderWorkerSet":
        group = spec["leaderWorkerTemplate"]
        return [(group["workerTemplate"], int(group["size"]))]
    if kind == "CronJob":
        return [(spec["jobTemplate"]["spec"]["template"], 1)]
    if kind in ("StatefulSet", "Deployment", "Job"):
        return [(spec["template"], 1)]
    return []


def load(files: Mapping[str, bytes]) -> list[ClusterObject]:
    """Read the objects of rendered files."""
    return [
        row
        for path, content in sorted(files.items())
        if path.endswith(".yaml")
        for part in _BETWEEN.split(content.decode())
        if (row := documents.Document(path, part).yaml(FIX, ours=True))
        and row["kind"] != "Kustomization"
    ]
