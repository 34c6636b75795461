"""A stand-in of a Kubernetes API server, over TLS, for a real kubectl.

It stores objects, applies them on the server's side with owners of fields, scales, deletes,
lists by labels and gives logs. It schedules nothing and runs nothing: what a controller or a
kubelet would write, a test writes, by hand or with `follow`. It forwards no ports.
"""

from __future__ import annotations

import base64
import copy
import http.server
import json
import ssl
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import yaml

from kimi_prov.on_host.endpoint import tls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Object = dict[str, Any]
TOKEN = "canary-of-the-cluster"
# Group and version, plural, kind, whether it lies in a namespace.
KNOWN = (
    ("v1", "namespaces", "Namespace", False),
    ("v1", "nodes", "Node", False),
    ("v1", "pods", "Pod", True),
    ("v1", "services", "Service", True),
    ("v1", "secrets", "Secret", True),
    ("v1", "configmaps", "ConfigMap", True),
    ("v1", "events", "Event", True),
    ("v1", "persistentvolumeclaims", "PersistentVolumeClaim", True),
    ("v1", "resourcequotas", "ResourceQuota", True),
    ("v1", "limitranges", "LimitRange", True),
    ("v1", "serviceaccounts", "ServiceAccount", True),
    ("apps/v1", "statefulsets", "StatefulSet", True),
    ("batch/v1", "jobs", "Job", True),
    ("batch/v1", "cronjobs", "CronJob", True),
    ("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", True),
    ("networking.k8s.io/v1", "ingresses", "Ingress", True),
    ("networking.k8s.io/v1", "ingressclasses", "IngressClass", False),
    ("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy", True),
    ("rbac.authorization.k8s.io/v1", "roles", "Role", True),
    ("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding", True),
    ("storage.k8s.io/v1", "storageclasses", "StorageClass", False),
)
MORE = {
    "lws": ("leaderworkerset.x-k8s.io/v1", "leaderworkersets", "LeaderWorkerSet", True),
    "monitor": ("monitoring.coreos.com/v1", "servicemonitors", "ServiceMonitor", True),
    "rules": ("monitoring.coreos.com/v1", "prometheusrules", "PrometheusRule", True),
}
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_MINOR = "37"


class RefusalError(Exception):
    """An answer of the API that is a Status."""

    def __init__(self, code: int, reason: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": code,
            "reason": reason,
            "message": message,
            **more,
        }


@dataclass
class Api:
    """What is stored, by resource, namespace and name; and what a test has it do."""

    resources: list[tuple[str, str, str, bool]] = field(default_factory=lambda: list(KNOWN))
    stored: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    # Who set each field of an object by applying or scaling it.
    owners: dict[tuple[str, str, str], dict[str, str]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    # Called before each request, as controllers would act in between.
    follow: Callable[[Api], None] = lambda _: None
    # Plurals that the user may not see, and that the server refuses to apply with this message.
    forbidden: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)
    number: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def put(self, plural: str, row: Object, namespace: str = "kimi") -> Object:
        """Store an object as it is."""
        version, _, kind, spaced = self.resource(plural)
        found = {"apiVersion": version, "kind": kind, **copy.deepcopy(row)}
        metadata = found.setdefault("metadata", {})
        if spaced:
            metadata.setdefault("namespace", namespace)
        self.number += 1
        if plural == "pods":
            container = {"name": "engine", "image": "stand-in"}
            found.setdefault("spec", {}).setdefault("containers", [container])
        metadata.setdefault("uid", f"uid-{self.number}")
        metadata["resourceVersion"] = str(self.number)
        metadata.setdefault("creationTimestamp", "2026-11-23T12:00:00Z")
        space = metadata["namespace"] if spaced else ""
        self.stored[plural, space, metadata["name"]] = found
        return found

    def get(self, plural: str, name: str, namespace: str = "kimi") -> Object | None:
        spaced = self.resource(plural)[3]
        return self.stored.get((plural, namespace if spaced else "", name))

    def all(self, plural: str) -> list[Object]:
        return [row for (found, _, _), row in self.stored.items() if found == plural]

    def drop(self, plural: str, name: str, namespace: str = "kimi") -> None:
        self.stored.pop((plural, namespace if self.resource(plural)[3] else "", name), None)

    def resource(self, plural: str) -> tuple[str, str, str, bool]:
        return next(row for row in self.resources if row[1] == plural)

    def groups(self) -> Object:
        versions = sorted({row[0] for row in self.resources if "/" in row[0]})
        rows = []
        for version in versions:
            entry = {"groupVersion": version, "version": version.rpartition("/")[2]}
            name = version.partition("/")[0]
            rows.append({"name": name, "versions": [entry], "preferredVersion": entry})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": rows}

    def listed(self, version: str) -> Object:
        rows = []
        for found, plural, kind, spaced in self.resources:
            if found == version:
                singular = kind.lower()
                entry = {"name": plural, "singularName": singular, "namespaced": spaced}
                rows.append({**entry, "kind": kind, "verbs": _VERBS})
                if plural in ("statefulsets", "leaderworkersets"):
                    scale = {"name": f"{plural}/scale", "singularName": "", "namespaced": True}
                    scale |= {"group": "autoscaling", "version": "v1", "kind": "Scale"}
                    rows.append({**scale, "verbs": ["get", "patch", "update"]})
        if not rows:
            raise RefusalError(404, "NotFound", "the server could not find the requested resource")
        return {"kind": "APIResourceList", "groupVersion": version, "resources": rows}

    def openapi(self, path: str) -> Object:
        """As much as kubectl looks for before it has the server validate fields."""
        places = {
            f"{'apis' if '/' in row[0] else 'api'}/{row[0]}": row[0] for row in self.resources
        }
        if not path:
            found = {name: {"serverRelativeURL": f"/openapi/v3/{name}"} for name in places}
            return {"paths": found}
        known = ("dryRun", "fieldValidation", "fieldManager")
        parameters = [{"name": name, "in": "query"} for name in known]
        paths = {}
        for version, plural, kind, _ in self.resources:
            if version == places.get(path):
                group, _, number = version.rpartition("/")
                named = {"group": group, "version": number, "kind": kind}
                patch = {"x-kubernetes-action": "patch", "parameters": parameters}
                patch["x-kubernetes-group-version-kind"] = named
                paths[f"/{path}/{plural}/{{name}}"] = {"patch": patch}
        return {"openapi": "3.0.0", "info": {"title": "", "version": ""}, "paths": paths}

    def apply(self, key: tuple[str, str, str], body: Object, query: dict[str, str]) -> Object:
        """Apply on the server's side: who sets a field owns it, another's is a conflict."""
        plural, space, name = key
        manager = query["fieldManager"]
        before = self.stored.get(key)
        row = copy.deepcopy(before) if before else {"metadata": {}}
        owners = dict(self.owners.get(key) or {})
        wanted = dict(_leaves({k: v for k, v in body.items() if k != "status"}))
        conflicts = [
            path
            for path, value in wanted.items()
            if owners.get(path, manager) != manager and _read(row, path) != value
        ]
        if conflicts and query.get("force") != "true":
            told = ", ".join(conflicts)
            raise RefusalError(
                409,
                "Conflict",
                f"Apply failed with {len(conflicts)} conflict: conflict with "
                f'"{owners[conflicts[0]]}": {told}',
            )
        if before and plural == "jobs" and _of_template(before) != _of_template(body):
            raise RefusalError(
                422, "Invalid", f'Job.batch "{name}" is invalid: spec.template: field is immutable'
            )
        for path in [p for p, owner in owners.items() if owner == manager and p not in wanted]:
            _write(row, path, None)
            del owners[path]
        for path, value in wanted.items():
            _write(row, path, copy.deepcopy(value))
            owners[path] = manager
        row["metadata"]["generation"] = (before or {}).get("metadata", {}).get("generation", 0) + (
            before is None or _spec(before) != _spec(row)
        )
        if "dryRun" in query:
            row["metadata"].setdefault("namespace", space)
            return row
        self.owners[key] = owners
        return self.put(plural, row, space)

    def scale(self, key: tuple[str, str, str], body: Object | None) -> Object:
        row = self.stored.get(key)
        if row is None:
            raise _absent(key)
        if body is not None:
            row["spec"]["replicas"] = body["spec"]["replicas"]
            self.owners.setdefault(key, {})["spec/replicas"] = "kubectl"
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {"name": key[2], "namespace": key[1]},
            "spec": {"replicas": row["spec"]["replicas"]},
            "status": {"replicas": row.get("status", {}).get("replicas", 0)},
        }


def _spec(row: Object) -> object:
    return {k: v for k, v in row.items() if k not in ("metadata", "status")}


def _of_template(row: Object) -> object:
    return row["spec"]["template"]["spec"]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Give each value with its path; lists are one value, which is less than the real one does."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            # A label has slashes of its own.
            step = str(key).replace("/", "~")
            yield from _leaves(inner, f"{path}/{step}" if path else step)
    else:
        yield path, value


def _read(row: Object, path: str) -> Any:
    found: Any = row
    for step in path.split("/"):
        found = found.get(step.replace("~", "/")) if isinstance(found, dict) else None
    return found


def _write(row: Object, path: str, value: Any) -> None:
    *steps, last = [step.replace("~", "/") for step in path.split("/")]
    for step in steps:
        if not isinstance(row.get(step), dict):
            row[step] = {}
        row = row[step]
    if value is None:
        row.pop(last, None)
    else:
        row[last] = value


def _absent(key: tuple[str, str, str]) -> RefusalError:
    return RefusalError(404, "NotFound", f'{key[0]} "{key[2]}" not found')


def _fits(row: Object, selector: str) -> bool:
    labels = row["metadata"].get("labels") or {}
    pairs = [part.split("=", 1) for part in selector.split(",") if part]
    return all(labels.get(name.rstrip("=")) == value.lstrip("=") for name, value in pairs)


class Handler(http.server.BaseHTTPRequestHandler):
    """Requests of kubectl."""

    api: Api
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer("GET")

    def do_PATCH(self) -> None:
        self._answer("PATCH")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, verb: str) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        with self.api.lock:
            self.api.requests.append(f"{verb} {self.path}")
            self.api.bodies.append(content.decode(errors="replace"))
            try:
                self._know()
                self.api.follow(self.api)
                body = yaml.safe_load(content) if content else None
                found = self._found(verb, parts.path.strip("/").split("/"), query, body)
                code = 200
            except RefusalError as refusal:
                found, code = refusal.status, refusal.code
            sent = found if isinstance(found, str) else json.dumps(found)
        self.send_response(code)
        kind = "text/plain" if isinstance(found, str) else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(sent.encode())))
        self.end_headers()
        self.wfile.write(sent.encode())

    def _know(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise RefusalError(401, "Unauthorized", "Unauthorized")

    def _found(self, verb: str, steps: list[str], query: dict[str, str], body: Any) -> Object | str:
        api = self.api
        if steps == ["version"]:
            return {"major": "1", "minor": _MINOR, "gitVersion": f"v1.{_MINOR}.0"}
        if steps == ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        if steps == ["apis"]:
            return api.groups()
        if steps[:2] == ["openapi", "v3"]:
            return api.openapi("/".join(steps[2:]))
        if steps[0] == "api":
            version, rest = steps[1], steps[2:]
        elif steps[0] == "apis" and len(steps) >= 3:
            version, rest = "/".join(steps[1:3]), steps[3:]
        else:
            raise RefusalError(404, "NotFound", "the server could not find the requested resource")
        if not rest:
            return api.listed(version)
        space = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            space, rest = rest[1], rest[2:]
        return self._resource(verb, version, space, rest, query, body)

    def _resource(
        self,
        verb: str,
        version: str,
        space: str,
        rest: list[str],
        query: dict[str, str],
        body: Any,
    ) -> Object | str:
        api, plural = self.api, rest[0]
        if (version, plural) not in {row[:2] for row in api.resources}:
            raise RefusalError(404, "NotFound", "the server could not find the requested resource")
        if plural in api.forbidden:
            user = 'User "me" cannot do that in API group ""'
            raise RefusalError(403, "Forbidden", f"{plural} is forbidden: {user}")
        if len(rest) == 1:
            return self._list(plural, space, query)
        key = (plural, space, rest[1])
        if rest[2:] == ["log"]:
            name = f"{rest[1]}{'~' if query.get('previous') == 'true' else ''}"
            lines = api.logs.get(name, "").splitlines(keepends=True)
            return "".join(lines[-int(query.get("tailLines", 1000)) :])
        if rest[2:] == ["scale"]:
            return api.scale(key, None if verb == "GET" else body)
        if verb == "PATCH" and "apply-patch" in self.headers["Content-Type"]:
            return api.apply(key, body, query)
        if key not in api.stored:
            raise _absent(key)
        if verb == "DELETE":
            return api.stored.pop(key)
        return api.stored[key]

    def _list(self, plural: str, space: str, query: dict[str, str]) -> Object:
        version, _, kind, _ = self.api.resource(plural)
        rows = [
            row
            for (found, there, _), row in self.api.stored.items()
            if found == plural
            and (not space or there == space)
            and _fits(row, query.get("labelSelector", ""))
        ]
        return {
            "kind": f"{kind}List",
            "apiVersion": version,
            "metadata": {"resourceVersion": str(self.api.number)},
            "items": rows,
        }


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Api, Path]]:
    """Serve; give the API and a kubeconfig for it, with a context and its namespace."""
    pem = tls.make_self_signed(["127.0.0.1"])
    file = folder / "api.pem"
    file.write_text(pem)
    api = Api()
    handler = type("ApiHandler", (Handler,), {"api": api})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    config = folder / "kubeconfig"
    authority = base64.b64encode(tls.extract_certificates(pem).encode()).decode()
    there = {"server": f"https://127.0.0.1:{server.server_address[1]}"}
    config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "stand-in",
                "clusters": [
                    {"name": "c", "cluster": {**there, "certificate-authority-data": authority}}
                ],
                "users": [{"name": "u", "user": {"token": TOKEN}}],
                "contexts": [
                    {
                        "name": "stand-in",
                        "context": {"cluster": "c", "user": "u", "namespace": "kimi"},
                    }
                ],
            }
        )
    )
    config.chmod(0o600)
    try:
        yield api, config
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
