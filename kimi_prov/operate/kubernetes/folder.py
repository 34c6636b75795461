"""A folder that `render kubernetes` made, as kustomize builds it: which object is which."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kimi_prov import documents
from kimi_prov.contract import clean_text
from kimi_prov.contract.rendered_kinds import KUBERNETES
from kimi_prov.errors import UserError
from kimi_prov.operate.kubernetes import answers
from kimi_prov.operate.kubernetes.kubectl import Kubectl
from kimi_prov.render import folder_writer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kimi_prov.contract.documents.plan import MachinePlan
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
        """Read and build a folder. Raises UserError for another folder or a failed build."""
        record = folder_writer.read_record(path, KUBERNETES)
        kubectl = Kubectl.find(target)
        objects = tuple(_parse_objects(path, kubectl.build(path)))
        kubectl = kubectl.within(_choose_namespace(path, objects, target, kubectl))
        folder = cls(path, kubectl, record, objects)
        folder.check()
        return folder

    def check(self) -> None:
        """Raise UserError unless the folder has exactly one workload with a service."""
        _ = self.workload, self.service

    @cached_property
    def workload(self) -> Object:
        """The object that serves the model."""
        return self._one(WORKLOADS)

    @cached_property
    def name(self) -> str:
        """Name of the workload: `kimi` by default."""
        return answers.read_name(self.workload)

    @property
    def kind(self) -> str:
        """The workload's kind as kubectl names it."""
        return WORKLOADS[self.workload["kind"]]

    @property
    def resource(self) -> str:
        """The workload as kubectl takes it: statefulset/kimi."""
        return format_name(self.workload)

    @cached_property
    def service(self) -> Object:
        """The service that clients reach the engine by; a headless one is for the pods alone."""
        services = [row for row in self.of_kind("Service") if read_component(row) in ("engine", "")]
        served = [row for row in services if answers.read_path(row, "spec", "clusterIP") != "None"]
        if not served:
            raise self._lacks("Service of the engine")
        return served[0]

    @cached_property
    def job(self) -> Object | None:
        """The job that fetches the weights; None where the site took it out."""
        return next((row for row in self.of_kind("Job") if read_component(row) == "fetch"), None)

    @cached_property
    def plan(self) -> MachinePlan:
        """The plan that the folder was rendered from."""
        return folder_writer.read_plan(self.path)

    @property
    def replicas(self) -> int | None:
        """Replicas in the workload's file: 0 means stopped, None leaves it to an autoscaler."""
        replicas = answers.read_path(self.workload, "spec", "replicas")
        return replicas if isinstance(replicas, int) else None

    @property
    def group_size(self) -> int:
        """Pods that serve one model together."""
        return max(answers.read_int(self.workload, "spec", "leaderWorkerTemplate", "size"), 1)

    @property
    def pod_templates(self) -> list[Object]:
        """Templates of the workload's pods: of a group the leader's first."""
        if self.workload["kind"] == "StatefulSet":
            return [answers.read_mapping(self.workload, "spec", "template")]
        group = answers.read_mapping(self.workload, "spec", "leaderWorkerTemplate")
        worker = answers.read_mapping(group, "workerTemplate")
        return [answers.read_mapping(group, "leaderTemplate") or worker, worker]

    @property
    def selector(self) -> str:
        """The label selector of all objects of the folder."""
        instance = answers.read_text(self.workload, "metadata", "labels", f"{LABEL}instance")
        return f"{LABEL}instance={instance or self.name}"

    @property
    def digest(self) -> str:
        """Digest of the plan that the pods are annotated with."""
        return read_digest(self.pod_templates[-1])

    @property
    def urls(self) -> list[str]:
        """Base URLs of the API: inside the cluster, and by its ingress."""
        port = answers.read_int(self.service, "spec", "ports", 0, "port")
        inside = f"{answers.read_name(self.service)}.{self.kubectl.namespace}.svc"
        urls = [f"https://{inside}{'' if port == _HTTPS else f':{port}'}/v1"]
        return [*urls, *(f"https://{host}/v1" for host in self._hosts())]

    def secret(self, mounted: str) -> str | None:
        """Return the name of the secret that the engine's pods mount at a path."""
        for template in self.pod_templates:
            volumes = {
                answers.read_text(row, "name"): answers.read_text(row, "secret", "secretName")
                for row in answers.read_rows(template, "spec", "volumes")
            }
            for container in answers.read_rows(template, "spec", "containers"):
                for row in answers.read_rows(container, "volumeMounts"):
                    name = volumes.get(answers.read_text(row, "name"), "")
                    if answers.read_text(row, "mountPath") == mounted and answers.NAME.fullmatch(
                        name
                    ):
                        return name
        return None

    def of_kind(self, kind: str) -> list[Object]:
        """Return the folder's objects of a kind."""
        return [row for row in self.objects if row["kind"] == kind]

    def _hosts(self) -> Iterable[str]:
        for row in self.of_kind("Ingress"):
            if read_component(row) in ("engine", ""):
                yield from (
                    answers.read_text(rule, "host")
                    for rule in answers.read_rows(row, "spec", "rules")
                )
        for row in self.of_kind("HTTPRoute"):
            if read_component(row) in ("engine", ""):
                names = answers.read_path(row, "spec", "hostnames")
                yield from (str(host) for host in names or () if isinstance(names, list))

    def _one(self, kinds: Iterable[str]) -> Object:
        rows = [r for r in self.objects if r["kind"] in kinds and read_component(r) == "engine"]
        if len(rows) != 1:
            raise self._lacks(f"{' or '.join(kinds)} with {LABEL}component: engine", len(rows))
        return rows[0]

    def _lacks(self, what: str, count: int = 0) -> UserError:
        return UserError(
            f"{self.path}: expected one {what}, found {count or 'none'}",
            fix="render the folder again",
        )


_HTTPS = 443


def read_component(row: Object) -> str:
    """Return what an object is for: engine, fetch, web."""
    return answers.read_text(row, "metadata", "labels", f"{LABEL}component")


def read_digest(template: object) -> str:
    """Return the plan's digest that a pod template carries."""
    return answers.read_text(template, "metadata", "annotations", DIGEST)


def format_name(row: Object) -> str:
    """Write an object as kubectl does: statefulset/kimi."""
    return f"{row['kind'].lower()}/{answers.read_name(row)}"


def format_manifest(rows: Iterable[Object]) -> str:
    """Write objects for kubectl's standard input: a stream, each of them validated by its kind."""
    return "\n---\n".join(map(json.dumps, rows))


def _parse_objects(path: Path, text: str) -> Iterable[Object]:
    fix = f"look at  kubectl kustomize {clean_text.quote_word(path)}"
    for part in _SEPARATOR.split(text):
        row = documents.Document(f"{path} as built", part).yaml(fix)
        if row is None:
            continue
        if not (
            answers.read_text(row, "kind")
            and answers.read_text(row, "apiVersion")
            and answers.read_name(row)
        ):
            raise UserError(f"{path}: kustomize built what is no Kubernetes object", fix=fix)
        yield row


def _choose_namespace(
    path: Path, objects: tuple[Object, ...], target: Target, kubectl: Kubectl
) -> str:
    """Return the folder's namespace. Raises UserError where two are named."""
    named = sorted(
        {space for row in objects if (space := answers.read_text(row, "metadata", "namespace"))}
    )
    if not named:
        return kubectl.namespace
    if len(named) > 1 or target.namespace not in (None, named[0]):
        names = ", ".join(map(clean_text.clean_line, named))
        raise UserError(
            f"{path}: its objects go to the namespace {names}"
            + (f", and --namespace says {target.namespace}" if len(named) == 1 else ""),
            fix="leave out --namespace, or render again with it"
            if len(named) == 1
            else f"name one in {path / 'kustomization.yaml'}",
        )
    if not answers.NAME.fullmatch(named[0]):
        raise UserError(f"{path}: {named[0]!r} is no namespace's name", fix="render it again")
    return named[0]
