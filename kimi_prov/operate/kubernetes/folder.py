"""A folder that `render kubernetes` made, as kustomize builds it: which object is which."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kimi_prov import documents
from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.operate.kubernetes import answers
from kimi_prov.operate.kubernetes.kubectl import Kubectl
from kimi_prov.render import frame
from kimi_prov.render.kubernetes.folder import KIND

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kimi_prov.operate.kubernetes.answers import Object
    from kimi_prov.operate.kubernetes.kubectl import Target

LABEL = "app.kubernetes.io/"
DIGEST = "kimi-prov.dev/plan-digest"
LWS_GROUP = "leaderworkerset.x-k8s.io"
# Kinds that serve the model, and how kubectl names them.
WORKLOADS = {
    "StatefulSet": "statefulsets.apps",
    "LeaderWorkerSet": f"leaderworkersets.{LWS_GROUP}",
}
_SEPARATOR = re.compile(r"^---[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Folder:
    """The folder, its objects, and kubectl with the namespace that they go to."""

    path: Path
    kubectl: Kubectl
    record: dict[str, Any]
    objects: tuple[Object, ...]

    @classmethod
    def read(cls, path: Path, target: Target) -> Folder:
        """Read and build a folder. Raises UserError where it is none, or cannot be built."""
        record = frame.record(path, KIND)
        kubectl = Kubectl.find(target)
        objects = tuple(_objects(path, kubectl.build(path)))
        kubectl = kubectl.within(_namespace(path, objects, target, kubectl))
        found = cls(path, kubectl, record, objects)
        found.check()
        return found

    def check(self) -> None:
        """Raise UserError where it has not one workload with a service."""
        _ = self.workload, self.service

    @cached_property
    def workload(self) -> Object:
        """The object that serves the model."""
        return self._one(WORKLOADS)

    @cached_property
    def name(self) -> str:
        """Name of the workload: `kimi` where nobody chose another."""
        return answers.name(self.workload)

    @property
    def kind(self) -> str:
        """The workload's kind as kubectl names it."""
        return WORKLOADS[self.workload["kind"]]

    @property
    def resource(self) -> str:
        """The workload as kubectl takes it: statefulset/kimi."""
        return called(self.workload)

    @cached_property
    def service(self) -> Object:
        """The service that clients reach the engine by; a headless one is for the pods alone."""
        found = [row for row in self.of_kind("Service") if component(row) in ("engine", "")]
        served = [row for row in found if answers.at(row, "spec", "clusterIP") != "None"]
        if not served:
            raise self._lacks("Service of the engine")
        return served[0]

    @cached_property
    def job(self) -> Object | None:
        """The job that fetches the weights; None where the site took it out."""
        return next((row for row in self.of_kind("Job") if component(row) == "fetch"), None)

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The plan that the folder was rendered from."""
        return frame.plan_of(self.path)

    @property
    def replicas(self) -> int | None:
        """How many of the workload the file says: 0 is stopped, None leaves it to others."""
        found = answers.at(self.workload, "spec", "replicas")
        return found if isinstance(found, int) else None

    @property
    def group_size(self) -> int:
        """Pods that serve one model together."""
        return max(answers.whole(self.workload, "spec", "leaderWorkerTemplate", "size"), 1)

    @property
    def pod_templates(self) -> list[Object]:
        """Templates of the workload's pods: of a group the leader's first."""
        if self.workload["kind"] == "StatefulSet":
            return [answers.mapping(self.workload, "spec", "template")]
        group = answers.mapping(self.workload, "spec", "leaderWorkerTemplate")
        worker = answers.mapping(group, "workerTemplate")
        return [answers.mapping(group, "leaderTemplate") or worker, worker]

    @property
    def selector(self) -> str:
        """The label of all that belongs to it."""
        instance = answers.text(self.workload, "metadata", "labels", f"{LABEL}instance")
        return f"{LABEL}instance={instance or self.name}"

    @property
    def digest(self) -> str:
        """Digest of the plan that the pods are annotated with."""
        return digest(self.pod_templates[-1])

    @property
    def urls(self) -> list[str]:
        """Base URLs of the API: inside the cluster, and by its ingress."""
        port = answers.whole(self.service, "spec", "ports", 0, "port")
        inside = f"{answers.name(self.service)}.{self.kubectl.namespace}.svc"
        found = [f"https://{inside}{'' if port == _HTTPS else f':{port}'}/v1"]
        return [*found, *(f"https://{host}/v1" for host in self._hosts())]

    def secret(self, mounted: str) -> str | None:
        """Return the name of the secret that the engine's pods mount at a path."""
        for template in self.pod_templates:
            volumes = {
                answers.text(row, "name"): answers.text(row, "secret", "secretName")
                for row in answers.rows(template, "spec", "volumes")
            }
            for container in answers.rows(template, "spec", "containers"):
                for row in answers.rows(container, "volumeMounts"):
                    name = volumes.get(answers.text(row, "name"), "")
                    if answers.text(row, "mountPath") == mounted and answers.NAME.fullmatch(name):
                        return name
        return None

    def of_kind(self, kind: str) -> list[Object]:
        """Return the folder's objects of a kind."""
        return [row for row in self.objects if row["kind"] == kind]

    def _hosts(self) -> Iterable[str]:
        for row in self.of_kind("Ingress"):
            if component(row) in ("engine", ""):
                yield from (
                    answers.text(rule, "host") for rule in answers.rows(row, "spec", "rules")
                )
        for row in self.of_kind("HTTPRoute"):
            if component(row) in ("engine", ""):
                names = answers.at(row, "spec", "hostnames")
                yield from (str(host) for host in names or () if isinstance(names, list))

    def _one(self, kinds: Iterable[str]) -> Object:
        found = [r for r in self.objects if r["kind"] in kinds and component(r) == "engine"]
        if len(found) != 1:
            raise self._lacks(f"{' or '.join(kinds)} with {LABEL}component: engine", len(found))
        return found[0]

    def _lacks(self, what: str, count: int = 0) -> UserError:
        return UserError(
            f"{self.path}: expected one {what}, found {count or 'none'}",
            fix="render the folder again",
        )


_HTTPS = 443


def component(row: Object) -> str:
    """Return what an object is for: engine, fetch, web."""
    return answers.text(row, "metadata", "labels", f"{LABEL}component")


def digest(template: object) -> str:
    """Return the plan's digest that a pod template carries."""
    return answers.text(template, "metadata", "annotations", DIGEST)


def called(row: Object) -> str:
    """Write an object as kubectl does: statefulset/kimi."""
    return f"{row['kind'].lower()}/{answers.name(row)}"


def manifest(rows: Iterable[Object]) -> str:
    """Write objects for kubectl's standard input: a stream, each of them validated by its kind."""
    return "\n---\n".join(map(json.dumps, rows))


def _objects(path: Path, text: str) -> Iterable[Object]:
    fix = f"look at  kubectl kustomize {clean_text.quote_word(path)}"
    for part in _SEPARATOR.split(text):
        row = documents.Document(f"{path} as built", part).yaml(fix)
        if row is None:
            continue
        if not (
            answers.text(row, "kind") and answers.text(row, "apiVersion") and answers.name(row)
        ):
            raise UserError(f"{path}: kustomize builds what is no object of Kubernetes", fix=fix)
        yield row


def _namespace(path: Path, objects: tuple[Object, ...], target: Target, kubectl: Kubectl) -> str:
    """Return the namespace that the folder goes to. Raises UserError where two are named."""
    named = sorted(
        {space for row in objects if (space := answers.text(row, "metadata", "namespace"))}
    )
    if not named:
        return kubectl.namespace
    if len(named) > 1 or target.namespace not in (None, named[0]):
        told = ", ".join(map(clean_text.clean_line, named))
        raise UserError(
            f"{path}: its objects go to the namespace {told}"
            + (f", and --namespace says {target.namespace}" if len(named) == 1 else ""),
            fix="leave out --namespace, or render again with it"
            if len(named) == 1
            else f"name one in {path / 'kustomization.yaml'}",
        )
    if not answers.NAME.fullmatch(named[0]):
        raise UserError(f"{path}: {named[0]!r} is no namespace's name", fix="render it again")
    return named[0]
