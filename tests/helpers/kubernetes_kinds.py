"""Rendered objects of Kubernetes held against schemas, and against what this project promises."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import kubernetes_validate
import yaml

from kimi_prov.render.kubernetes import quota

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from fractions import Fraction

VERSIONS = ("1.31", "1.34", "1.37")
_DATA = Path(__file__).parents[1] / "data" / "kubernetes"
_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"),
    *("projected", "secret"),
}


@cache
def _kinds() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((_DATA / "kinds.yaml").read_text())
    return found


def objects(folder: Path) -> list[dict[str, Any]]:
    """Return all objects of a rendered folder."""
    files = sorted(folder.glob("*.yaml"))
    return [row for path in files for row in loaded(path.read_text()) if is_object(row)]


def is_object(row: Mapping[str, Any]) -> bool:
    """Whether a document is applied, and not read by kustomize."""
    return row["kind"] != "Kustomization"


def loaded(text: str) -> list[dict[str, Any]]:
    """Return the documents of a text in YAML, each call its own."""
    return copy.deepcopy(_loaded(text))


@cache
def _loaded(text: str) -> list[dict[str, Any]]:
    return [
        row for row in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if row
    ]


def one(folder: Path, kind: str, name: str = "kimi") -> dict[str, Any]:
    """Return the object of a kind and name."""
    (found,) = (r for r in objects(folder) if (r["kind"], r["metadata"]["name"]) == (kind, name))
    return found


def check_schema(row: Mapping[str, Any], version: str) -> None:
    """Hold an object against the schemas of a version of Kubernetes. Raises for what is wrong."""
    own = _kinds().get(f"{row['apiVersion']}/{row['kind']}")
    if own is None:
        kubernetes_validate.validate(copy.deepcopy(row), version, strict=True)
        return
    jsonschema.Draft202012Validator(own).validate(row["spec"])
    for template in templates(row):
        stand_in = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": row["metadata"]}
        kubernetes_validate.validate(
            copy.deepcopy({**stand_in, "template": template}), version, strict=True
        )


def templates(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the pod templates of an object."""
    spec = row.get("spec") or {}
    if row["kind"] == "LeaderWorkerSet":
        return [spec["leaderWorkerTemplate"]["workerTemplate"]]
    if row["kind"] == "CronJob":
        return [spec["jobTemplate"]["spec"]["template"]]
    return [spec["template"]] if row["kind"] in ("StatefulSet", "Job") else []


def beyond_restricted(spec: Mapping[str, Any]) -> Iterator[str]:
    """Say what of a pod is beyond the restricted Pod Security Standard, control by control."""
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))
    for volume in spec.get("volumes") or []:
        if set(volume) - {"name"} - _VOLUMES:
            yield f"volume {volume['name']}"
    for part in [*(spec.get("initContainers") or []), *spec["containers"]]:
        own = part.get("securityContext") or {}
        both = {**(spec.get("securityContext") or {}), **own}
        capabilities = own.get("capabilities") or {}
        profile = (both.get("seccompProfile") or {}).get("type")
        wrong = {
            "root": both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0,
            "seccomp": profile not in ("RuntimeDefault", "Localhost"),
            "privileges": own.get("allowPrivilegeEscalation") is not False
            or bool(own.get("privileged")),
            "capabilities are kept": "ALL" not in (capabilities.get("drop") or []),
            "hostPort": any("hostPort" in port for port in part.get("ports") or []),
        }
        told = [name for name, found in wrong.items() if found]
        told += [n for n in capabilities.get("add") or [] if n != "NET_BIND_SERVICE"]
        yield from (f"{part['name']}: {name}" for name in told)


def size(value: object) -> Fraction:
    """Return a quantity as a number."""
    return quota.parse_amount(value, "the test")


def not_guaranteed(spec: Mapping[str, Any]) -> Iterator[str]:
    """Say which container's requests and limits of processors and memory are not the same."""
    for part in [*(spec.get("initContainers") or []), *spec["containers"]]:
        resources = part.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        if limits != requests or not {"cpu", "memory"} <= set(limits):
            yield str(part["name"])


# Where the image expects what, and whether it may write there.
_MOUNTS = {
    "/etc/kimi": ("configMap", True),
    "/run/kimi/key": ("secret", True),
    "/run/kimi/tls": ("secret", True),
    "/srv/kimi": ("persistentVolumeClaim", True),
    "/var/cache/kimi": ("emptyDir", False),
    "/tmp": ("emptyDir", False),
    "/dev/shm": ("emptyDir", False),
}
_PATIENCE_S, _START_S = 30, 900
_READY = ["/opt/kimi/bin/kimi-pod", "ready"]


def broken_promises(template: Mapping[str, Any], *, cache: str = "emptyDir") -> Iterator[str]:
    """Say what of an engine's pod is not as its image expects, and as an operator counts on.

    `cache`: the kind of volume that what is compiled lies in.
    """
    spec = template["spec"]
    (engine,) = spec["containers"]
    yield from _mounts(spec, engine, cache)
    yield from _probes(engine)
    port = {"name": "api", "containerPort": 8443, "protocol": "TCP"}
    waits = [part for part in spec.get("initContainers", []) if "verified" in str(part.get("env"))]
    kept = {
        "the command is: serve": engine.get("args") == ["serve"] and "command" not in engine,
        "port 8443 is named api": port in engine.get("ports", []),
        "no token of the cluster's": spec.get("automountServiceAccountToken") is False,
        "it waits for verified weights": bool(waits),
        "a new plan starts it anew": "kimi-prov.dev/plan-digest"
        in template["metadata"].get("annotations", {}),
        "its root is read only": (engine.get("securityContext") or {}).get(
            "readOnlyRootFilesystem"
        ),
    }
    yield from (f"not kept: {name}" for name, holds in kept.items() if not holds)
    yield from (f"{name} is not guaranteed" for name in not_guaranteed(spec))
    yield from beyond_restricted(spec)


def _mounts(spec: Mapping[str, Any], engine: Mapping[str, Any], cache: str) -> Iterator[str]:
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {row["mountPath"]: row for row in engine["volumeMounts"]}
    for path, (kind, read_only) in _MOUNTS.items():
        wanted = cache if path == "/var/cache/kimi" else kind
        row = mounts.get(path)
        if row is None or wanted not in volumes[row["name"]]:
            yield f"{path}: is no {wanted}"
        elif bool(row.get("readOnly")) != read_only:
            yield f"{path}: readOnly is not {read_only}"
    yield from (f"{path}: is not expected" for path in sorted(set(mounts) - set(_MOUNTS)))


def _probes(engine: Mapping[str, Any]) -> Iterator[str]:
    live = [*_READY, "--live"]
    for name, command in (("startup", _READY), ("readiness", _READY), ("liveness", live)):
        probe = engine.get(f"{name}Probe") or {}
        if (probe.get("exec") or {}).get("command") != command:
            yield f"{name} does not ask {' '.join(command)}"
        elif probe.get("timeoutSeconds", 1) < _PATIENCE_S:
            yield f"{name} has no patience for a chat"
    started = engine.get("startupProbe") or {}
    if started.get("periodSeconds", 10) * started.get("failureThreshold", 3) < _START_S:
        yield "the start has less than a quarter of an hour"
