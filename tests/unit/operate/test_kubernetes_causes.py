"""What a cluster lacks and why a pod does not come up, from objects as a cluster has them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import command_line
import pytest
import yaml

from kimi_prov.errors import ExitCode
from kimi_prov.operate.kubernetes import diagnosis, observe, requirements
from kimi_prov.operate.kubernetes.diagnosis import Baseline, Snapshot
from kimi_prov.operate.kubernetes.folder import Folder
from kimi_prov.operate.kubernetes.kubectl import Kubectl

SHEET = Path(__file__).resolve().parents[3] / "inventories" / "specs" / "reference-002.yml"
IMAGE = "registry.example.com/kimi:1"
LOG_OF_BEFORE = "--previous"


@dataclass(frozen=True)
class Logs(Kubectl):
    """A kubectl that knows the log of a container that ended, and nothing else."""

    text: str = ""

    def run(self, *words: str, content: str | None = None, timeout_s: float = 0) -> str:
        assert words[:2] == ("logs", "kimi-0"), words
        return self.text if LOG_OF_BEFORE in words else ""


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A folder as it was rendered: its own kustomization changes none of these objects."""
    there = tmp_path_factory.mktemp("rendered")
    (there / "v.yml").write_text(yaml.safe_dump({"kimi_kubernetes_image": IMAGE}))
    words = ("render", "kubernetes", SHEET, "--vars", there / "v.yml", "--output", there / "pods")
    done = command_line.run(*words)
    assert done.returncode == 0, done.stderr
    names = yaml.safe_load((there / "pods" / "kustomization.yaml").read_text())["resources"]
    texts = [(there / "pods" / name).read_text() for name in names]
    objects = [row for text in texts for row in yaml.safe_load_all(text)]
    return Folder(there / "pods", Logs("kubectl", "stand-in", "kimi"), {}, tuple(objects))


def node(**allocatable: str) -> Any:
    has = {"cpu": "256", "memory": "2Ti", "nvidia.com/gpu": "8", "ephemeral-storage": "4Ti"}
    has |= {"pods": "110"} | {k.replace("gpu", "nvidia.com/gpu"): v for k, v in allocatable.items()}
    return {"metadata": {"name": "n1"}, "status": {"allocatable": has}}


DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}
WHOLE = requirements.Cluster(
    groups=frozenset({"apps/v1", "batch/v1", "policy/v1", "networking.k8s.io/v1"}),
    namespace=True,
    nodes=[node()],
    storage_classes=[{"metadata": {"name": "fast", "annotations": DEFAULT}}],
    ingress_classes=[],
    quotas=(),
    claims=[],
    secrets=frozenset({"kimi-key", "kimi-tls"}),
    workloads={},
    pods=0,
    fetching=0,
)


def blockers(folder: Folder, cluster: requirements.Cluster) -> list[Any]:
    rows = requirements.check_requirements(folder, cluster)
    return [row for row in rows if row["severity"] == "blocker"]


def test_a_cluster_that_has_all_of_it_lacks_nothing(rendered: Folder) -> None:
    assert blockers(rendered, WHOLE) == []


def cordoned() -> Any:
    return {**node(), "spec": {"unschedulable": True}}


def tainted() -> Any:
    return {**node(), "spec": {"taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]}}


def quota() -> Any:
    hard, used = {"requests.nvidia.com/gpu": "8"}, {"requests.nvidia.com/gpu": "4"}
    status = {"hard": hard, "used": used}
    metadata = {"name": "team"}
    return {"kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}, "status": status}


@pytest.mark.parametrize(
    ("lacks", "finding", "told"),
    [
        ({"nodes": [node(gpu="0")]}, "cluster.devices", "room for 1 pods of nvidia.com/gpu 8"),
        ({"nodes": [cordoned()]}, "cluster.devices", "1 nodes, 0 that take the pod"),
        ({"nodes": [tainted()]}, "cluster.devices", "1 nodes, 0 that take the pod"),
        ({"nodes": [node(memory="100Gi")]}, "cluster.room", "memory 100.0 GiB"),
        ({"namespace": False}, "cluster.namespace", "kubectl create namespace kimi"),
        (
            {"storage_classes": []},
            "cluster.storage_class",
            "a default class, for the claim kimi-models",
        ),
        (
            {"secrets": frozenset({"kimi-tls"})},
            "cluster.secret",
            "create secret generic kimi-key --from-file=api-key=FILE",
        ),
        ({"quotas": [quota()]}, "cluster.quota", "team: requests.nvidia.com/gpu: 4 of 8 left"),
    ],
)
def test_what_a_cluster_lacks_is_a_blocker_with_its_fix(
    rendered: Folder, lacks: dict[str, Any], finding: str, told: str
) -> None:
    (row,) = blockers(rendered, replace(WHOLE, **lacks))
    assert row["id"] == finding
    assert told in " ".join(str(row[name]) for name in ("observed", "required", "fix"))
    assert row["fix"]


INGRESS = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "Ingress",
    "metadata": {"name": "mine"},
    "spec": {"ingressClassName": "nginx", "rules": [{"host": "kimi.example.com"}]},
}
MONITOR = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "ServiceMonitor",
    "metadata": {"name": "mine"},
    "spec": {},
}


@pytest.mark.parametrize(
    ("added", "finding", "told"),
    [
        (INGRESS, "cluster.ingress_class", "nginx, for the ingress mine"),
        (MONITOR, "cluster.api", "monitoring.coreos.com/v1, for ServiceMonitor"),
    ],
)
def test_what_the_sites_own_objects_need_is_held_against_the_cluster_too(
    rendered: Folder, added: Any, finding: str, told: str
) -> None:
    folder = replace(rendered, objects=(*rendered.objects, added))
    (row,) = blockers(folder, WHOLE)
    assert (row["id"], row["required"]) == (finding, told)


def test_a_secret_that_cert_manager_makes_is_not_asked_for(rendered: Folder) -> None:
    made = {
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": {"name": "kimi-tls"},
        "spec": {"secretName": "kimi-tls"},
    }
    folder = replace(rendered, objects=(*rendered.objects, made))
    lacks = replace(WHOLE, secrets=frozenset({"kimi-key"}))
    assert [row["id"] for row in blockers(rendered, lacks)] == ["cluster.secret"]
    (row,) = blockers(folder, lacks)
    assert (row["id"], row["required"]) == ("cluster.api", "cert-manager.io/v1, for Certificate")
    assert "cert-manager.io/docs" in str(row["fix"])


# why a pod does not come up


def container(**state: Any) -> Any:
    row = {"name": "engine", "image": IMAGE, "restartCount": 0, "state": {}, **state}
    return {"containerStatuses": [row]}


def waits(reason: str, message: str = "") -> Any:
    return container(state={"waiting": {"reason": reason, "message": message}})


def unschedulable(message: str) -> Any:
    row = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"conditions": [row]}


def ended(reason: str, code: int) -> Any:
    gone = {"terminated": {"reason": reason, "exitCode": code}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    return container(state=waiting, lastState=gone, restartCount=1)


def snapshot(folder: Folder, **seen: Any) -> Snapshot:
    """What a cluster has of a folder that was applied and does not serve yet."""
    workload = copy.deepcopy(folder.workload)
    workload["metadata"]["generation"] = 1
    workload["status"] = {"observedGeneration": 1, "readyReplicas": 0}
    return Snapshot(workload, **seen)


OOM = "loading\ntorch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\nRuntimeError"
UNVERIFIED = "the weights in /srv/kimi are not verified; run the fetch"
NO_GPUS = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: x"
UNBOUND = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."


@pytest.mark.parametrize(
    ("status", "log", "code", "why", "fix"),
    [
        (
            unschedulable(NO_GPUS),
            "",
            ExitCode.BLOCKED,
            "the pod kimi-0 fits on no node: 0/1 nodes are available: 1 Insufficient nvidia.com",
            "add a node with them",
        ),
        (
            unschedulable("0/1 nodes are available: 1 Insufficient memory."),
            "",
            ExitCode.BLOCKED,
            "Insufficient memory",
            "--context stand-in --namespace kimi describe nodes",
        ),
        (unschedulable(UNBOUND), "", ExitCode.BLOCKED, "unbound", "describe pvc"),
        (
            waits("ImagePullBackOff", "no such host"),
            "",
            ExitCode.FAILED,
            f"the image {IMAGE}",
            "registry",
        ),
        (
            waits("InvalidImageName"),
            "",
            ExitCode.FAILED,
            "is not pulled: InvalidImageName",
            "--image",
        ),
        (
            waits("CreateContainerConfigError", 'secret "kimi-key" not found'),
            "",
            ExitCode.FAILED,
            'cannot start: secret "kimi-key" not found',
            "describe pod kimi-0",
        ),
        (ended("OOMKilled", 137), "", ExitCode.FAILED, "OOMKilled", "kimi_context"),
        (
            ended("Error", 1),
            OOM,
            ExitCode.FAILED,
            "memory ran out: torch.OutOfMemoryError: CUDA out of memory",
            "kimi_concurrency",
        ),
        (
            ended("Error", 2),
            UNVERIFIED,
            ExitCode.FAILED,
            f"its last line: {UNVERIFIED}",
            "correct what its log says",
        ),
    ],
)
def test_why_a_pod_does_not_come_up_is_said_with_what_to_do(
    rendered: Folder, status: Any, log: str, code: ExitCode, why: str, fix: str
) -> None:
    folder = replace(rendered, kubectl=Logs("kubectl", "stand-in", "kimi", log))
    pod = {"metadata": {"name": "kimi-0", "uid": "u"}, "status": {"phase": "Pending", **status}}
    trouble = diagnosis.judge_engine(snapshot(folder, pods=[pod]), Baseline()).trouble
    assert trouble is not None
    explained, shown = observe.explain_trouble(folder, trouble)
    error = observe.make_error(folder, explained)
    assert error.exit_code is code
    assert why in error.message
    assert fix in (error.fix or "")
    assert shown == log


@pytest.mark.parametrize(
    ("about", "reason", "message", "told"),
    [
        (
            ("StatefulSet", "kimi"),
            "FailedCreate",
            "pods is forbidden: exceeded quota: team",
            "no pod is created",
        ),
        (
            ("PersistentVolumeClaim", "kimi-models"),
            "ProvisioningFailed",
            "no space in pool",
            "the claim kimi-models gets no volume: no space in pool",
        ),
    ],
)
def test_what_only_an_event_tells_is_told(
    rendered: Folder, about: tuple[str, str], reason: str, message: str, told: str
) -> None:
    event = {
        "involvedObject": {"kind": about[0], "name": about[1]},
        "reason": reason,
        "message": message,
        "lastTimestamp": "2099-01-01T00:00:00Z",
    }
    claim = {"metadata": {"name": "kimi-models"}, "status": {"phase": "Pending"}}
    pod = {"metadata": {"name": "kimi-0", "uid": "u"}, "status": {"phase": "Pending"}}
    pods = [] if about[0] == "StatefulSet" else [pod]
    seen = snapshot(rendered, pods=pods, claims=[claim], events=[event])
    trouble = diagnosis.judge_engine(seen, Baseline()).trouble
    assert trouble is not None
    assert trouble.exit_code is ExitCode.BLOCKED
    assert told in trouble.cause
