"""What is decided of a cluster from what it says: pure functions, fed with its answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from kimi_prov.errors import ExitCode
from kimi_prov.operate.kubernetes import (
    answers,
    changes,
    diagnosis,
    folder,
    kubectl,
    requirements,
    steps,
)
from kimi_prov.operate.kubernetes.diagnosis import Baseline, Snapshot

NOW = 2_000_000_000.0


def pod(name: str = "kimi-0", revision: str = "", **status: Any) -> Any:
    labels = {"controller-revision-hash": revision} if revision else {}
    return {"metadata": {"name": name, "uid": f"of {name}", "labels": labels}, "status": status}


def crashed(count: int) -> Any:
    return {
        "containerStatuses": [
            {
                "name": "engine",
                "restartCount": count,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
            }
        ]
    }


def workload(replicas: int = 1, **status: Any) -> Any:
    metadata = {"name": "kimi", "generation": 2}
    return {
        "kind": "StatefulSet",
        "metadata": metadata,
        "spec": {"replicas": replicas},
        "status": status,
    }


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({"readyReplicas": 1, "observedGeneration": 2, "updatedReplicas": 1}, "serving"),
        # The controller has not seen what was applied: who is ready is of before.
        ({"readyReplicas": 1, "observedGeneration": 1}, "starting"),
        ({"readyReplicas": 1, "observedGeneration": 2, "updatedReplicas": 0}, "starting"),
        ({"readyReplicas": 0, "observedGeneration": 2}, "starting"),
        ({}, "starting"),
    ],
)
def test_what_is_ready_is_what_was_applied(status: Any, state: str) -> None:
    assert diagnosis.judge_engine(Snapshot(workload(**status)), Baseline()).state == state


def test_a_pod_of_a_former_revision_is_not_judged() -> None:
    now = workload(updateRevision="new", observedGeneration=2)
    found = Snapshot(now, pods=[pod(revision="old", **crashed(3))])
    assert diagnosis.judge_engine(found, Baseline()).state == "starting"
    own = Snapshot(now, pods=[pod(revision="new", **crashed(3))])
    assert diagnosis.judge_engine(own, Baseline()).state == "failed"


def test_restarts_of_before_are_no_failure_of_this_start() -> None:
    running = {"containerStatuses": [{"name": "engine", "restartCount": 2, "state": {"running": {}},
               "lastState": {"terminated": {"exitCode": 1}}}]}  # fmt: skip
    found = Snapshot(workload(), pods=[pod(**running)])
    before = Baseline.from_snapshot(found, NOW)
    assert diagnosis.judge_engine(found, before).trouble is None
    again = Snapshot(workload(), pods=[pod(**crashed(3))])
    assert diagnosis.judge_engine(again, before).state == "failed"


def event(reason: str, about: str, message: str, at: str = "2033-05-18T03:33:20Z") -> Any:
    kind, _, name = about.partition("/")
    involved = {"kind": kind, "name": name}
    return {"reason": reason, "message": message, "lastTimestamp": at, "involvedObject": involved}


def test_a_node_that_is_on_its_way_is_waited_for() -> None:
    row = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "x"}
    pods = [pod(conditions=[row])]
    told = diagnosis.judge_engine(Snapshot(workload(), pods=pods), Baseline()).trouble
    assert told is not None
    assert told.waits
    assert told.exit_code is ExitCode.BLOCKED
    coming = [event("TriggeredScaleUp", "Pod/kimi-0", "pool: 1->2")]
    awaited = Snapshot(workload(), pods=pods, events=coming)
    assert diagnosis.judge_engine(awaited, Baseline()).trouble is None


def group(**status: Any) -> Any:
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": 2}}
    return {**workload(**status), "kind": "LeaderWorkerSet", "spec": spec}


def member(name: str, revision: str = "new", **status: Any) -> Any:
    found = pod(name, **status)
    found["metadata"]["labels"] = {"leaderworkerset.sigs.k8s.io/template-revision-hash": revision}
    return found


def test_a_group_that_is_made_anew_shows_its_crash_while_it_ends() -> None:
    """Its first restart deletes the group; who comes after has another uid and no restarts."""
    leader = member("kimi-0", **crashed(1))
    leader["metadata"]["deletionTimestamp"] = "2033-05-18T03:33:20Z"
    found = diagnosis.judge_engine(Snapshot(group(), pods=[leader], revision="new"), Baseline())
    assert found.state == "failed"
    assert "ended with exit code 1" in found.line
    # Of a StatefulSet it is one that a new revision or a colleague took away.
    assert diagnosis.judge_engine(Snapshot(workload(), pods=[leader]), Baseline()).trouble is None


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ([{}], "starting"),
        ([{}, {}], "failed"),
        ([{"count": 2}], "failed"),
        ([{"series": {"count": 2}}], "failed"),
        ([{"reason": "RecreateGroupOnPodRestart", "count": 2}], "failed"),
        ([{"reason": "GroupsProgressing", "count": 9}], "starting"),
    ],
)
def test_a_group_that_is_made_anew_twice_is_told(rows: Any, state: str) -> None:
    told = event("RecreateGroup", "LeaderWorkerSet/kimi", "Worker pod kimi-0-1 failed")
    events = [{**told, **row} for row in rows]
    found = diagnosis.judge_engine(Snapshot(group(), events=events), Baseline())
    assert found.state == state
    assert ("Worker pod kimi-0-1 failed" in found.line) == (state == "failed")


@pytest.mark.parametrize(
    "about", ["StatefulSet/kimi", "StatefulSet/kimi-0", "LeaderWorkerSet/kimi"]
)
def test_a_worker_that_cannot_be_created_is_told_beside_its_leader(about: str) -> None:
    rows = [event("FailedCreate", about, "pods is forbidden: exceeded quota: team")]
    leader, worker = member("kimi-0"), member("kimi-0-1")
    found = diagnosis.judge_engine(
        Snapshot(group(), pods=[leader], events=rows), Baseline()
    ).trouble
    assert found is not None
    assert found.exit_code is ExitCode.BLOCKED
    both = Snapshot(group(), pods=[leader, worker], events=rows)
    assert diagnosis.judge_engine(both, Baseline()).trouble is None


def test_pods_of_a_former_group_are_not_judged() -> None:
    old = [member("kimi-0", "old", **crashed(3))]
    assert (
        diagnosis.judge_engine(Snapshot(group(), pods=old, revision="new"), Baseline()).trouble
        is None
    )
    now = diagnosis.judge_engine(Snapshot(group(), pods=old, revision="old"), Baseline())
    assert now.state == "failed"


def test_nobody_is_judged_before_the_controller_has_seen_what_was_applied() -> None:
    found = Snapshot(workload(observedGeneration=1, updateRevision="old"),
                     pods=[pod(revision="old", **crashed(3))])  # fmt: skip
    assert diagnosis.judge_engine(found, Baseline()).trouble is None


@pytest.mark.parametrize("reason", ["FailedMount", "FailedCreatePodSandBox"])
def test_what_a_pod_waited_for_and_got_is_no_trouble(reason: str) -> None:
    waiting = {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}
    failed = event(reason, "Pod/kimi-0", "not yet")

    def found(*events: Any, now: str = "2033-05-18T03:33:25Z") -> Any:
        unix = answers.parse_time({"at": now}, "at")
        assert unix is not None
        shown = Snapshot(workload(), pods=[pod(**waiting)], events=events, now_unix=unix)
        return diagnosis.judge_engine(shown, Baseline()).trouble

    assert found(failed).waits
    later = "2033-05-18T03:33:22Z"
    assert found(failed, event("Pulling", "Pod/kimi-0", "", later)) is None
    assert found(failed, event("Pulling", "Pod/kimi-1", "", later)) is not None
    assert found(event("SuccessfulAttachVolume", "Pod/kimi-0", "", "2033-05-18T03:33:19Z"), failed)
    # A kubelet tries again every two minutes at least.
    assert found(failed, now="2033-05-18T03:35:25Z") is not None
    assert found(failed, now="2033-05-18T03:36:20Z") is None


def test_events_of_long_ago_are_no_trouble() -> None:
    old = [event("FailedCreate", "StatefulSet/kimi", "exceeded quota", "2026-01-01T00:00:00Z")]
    assert diagnosis.judge_engine(Snapshot(workload(), events=old), Baseline()).trouble is not None
    since = Baseline({}, NOW)
    assert diagnosis.judge_engine(Snapshot(workload(), events=old), since).trouble is None


def test_why_the_model_does_not_answer_yet_is_the_last_probe() -> None:
    rows = [
        event("Unhealthy", "Pod/kimi-0", "Readiness probe failed: not yet: loading shard 3 of 62")
    ]
    found = diagnosis.judge_engine(
        Snapshot(workload(), pods=[pod()], events=rows), Baseline(since_unix=0)
    )
    assert "loading shard 3 of 62" in found.line


@pytest.mark.parametrize(
    ("log", "cause", "fix"),
    [
        ("a\ntorch.OutOfMemoryError: CUDA out of memory\nSee root cause above", "OutOf", "context"),
        ("CUDA driver version is insufficient for CUDA runtime", "insufficient", "driver branch"),
        ("OSError: No space left on device", "No space left", "enlarge the volume"),
        ("ncclSystemError: System call failed", "ncclSystemError", "network policies"),
        ("one\n\x1b[31mlast\u202e\x1b[2J\n\n", "last\\u202e\\x1b[2J", "the former"),
        ("", "ended", "the former"),
    ],
)
def test_a_log_says_why_an_engine_ended(log: str, cause: str, fix: str) -> None:
    found = diagnosis.add_log(diagnosis.Trouble("it ended", "the former fix"), log)
    assert cause in found.cause
    assert fix in found.fix


def test_one_trouble_stays_the_same_while_its_counts_change() -> None:
    one = diagnosis.explain_unschedulable(
        "kimi-0", "0/3 nodes are available: 3 Insufficient memory."
    )
    other = diagnosis.explain_unschedulable(
        "kimi-0", "0/4 nodes are available: 4 Insufficient memory."
    )
    assert one.key == other.key
    assert one.key != diagnosis.explain_unschedulable("kimi-0", "untolerated taint").key


# which nodes take a pod


def node(taints: Any = (), labels: Any = None, **allocatable: str) -> Any:
    return {
        "metadata": {"name": "n", "labels": labels or {}},
        "spec": {"taints": list(taints)},
        "status": {"allocatable": allocatable},
    }


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "takes"),
    [
        (None, False),
        ({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_a_taint_has_to_be_tolerated(toleration: Any, takes: bool) -> None:
    template = {"spec": {"tolerations": [toleration] if toleration else []}}
    assert requirements.is_usable(node([TAINT]), template) is takes
    assert requirements.is_usable(node([{**TAINT, "effect": "PreferNoSchedule"}]), {})


def test_a_node_needs_the_labels_that_are_asked_for() -> None:
    template = {"spec": {"nodeSelector": {"pool": "gpu"}}}
    assert not requirements.is_usable(node(), template)
    assert requirements.is_usable(node(labels={"pool": "gpu"}), template)


def test_how_many_pods_a_node_holds() -> None:
    needs = {"cpu": Fraction(30), "memory": Fraction(64 << 30)}
    assert requirements.count_pods(node(cpu="64", memory="256Gi"), needs) == 2
    assert requirements.count_pods(node(cpu="64", memory="63Gi"), needs) == 0
    assert requirements.count_pods(node(cpu="lots", memory="256Gi"), needs) == 0


def test_a_pod_requests_what_its_containers_do_or_one_before_them() -> None:
    def container(**limits: str) -> Any:
        return {"resources": {"limits": limits}}

    template = {
        "spec": {
            "containers": [container(cpu="2", memory="1Gi"), container(cpu="500m")],
            "initContainers": [container(cpu="1", memory="4Gi")],
        }
    }
    assert requirements.sum_requests(template) == {
        "cpu": Fraction(5, 2),
        "memory": Fraction(4 << 30),
    }


def nothing_seen(**more: Any) -> requirements.Cluster:
    """A cluster whose every other part is as it should be, or is not seen."""
    found: Any = {
        "groups": None,
        "namespace": None,
        "nodes": None,
        "storage_classes": None,
        "ingress_classes": None,
        "quotas": (),
        "claims": None,
        "secrets": None,
        "workloads": {},
        "pods": 0,
        "fetching": 0,
    }
    return requirements.Cluster(**{**found, **more})


def needing_gpus(replicas: int | None = 1) -> Any:
    limits = {"cpu": "8", "nvidia.com/gpu": "8"}
    template = {"spec": {"containers": [{"name": "engine", "resources": {"limits": limits}}]}}
    spec: Any = {"template": template} if replicas is None else {
        "template": template, "replicas": replicas}  # fmt: skip
    metadata = {"name": "kimi", "labels": {"app.kubernetes.io/component": "engine"}}
    engine = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}
    return folder.Folder(Path("pods"), kubectl.Kubectl("kubectl", "", "kimi"), {}, (engine,))


def blockers(wanted: Any, cluster: requirements.Cluster) -> list[str]:
    rows = requirements.check_requirements(wanted, cluster)
    return [row["id"] for row in rows if row["severity"] == "blocker"]


def test_nodes_are_held_against_what_is_to_start_and_not_what_runs() -> None:
    cordoned = node(cpu="64", **{"nvidia.com/gpu": "8"})
    cordoned["spec"]["unschedulable"] = True
    for nodes in ([cordoned], []):
        assert blockers(needing_gpus(), nothing_seen(nodes=nodes)) == ["cluster.devices"]
        assert blockers(needing_gpus(None), nothing_seen(nodes=nodes)) == ["cluster.devices"]
        assert blockers(needing_gpus(), nothing_seen(nodes=nodes, pods=1)) == []
        assert blockers(needing_gpus(0), nothing_seen(nodes=nodes)) == []
    (told,) = requirements.check_requirements(needing_gpus(), nothing_seen(nodes=[]))
    assert "kubectl --namespace kimi apply --server-side" in str(told["fix"])
    small = node(cpu="4", **{"nvidia.com/gpu": "8"})
    assert blockers(needing_gpus(), nothing_seen(nodes=[small])) == ["cluster.room"]
    assert blockers(needing_gpus(), nothing_seen(nodes=[small], pods=1)) == []


def test_a_quota_is_not_held_against_a_fetch_that_goes_on() -> None:
    hard, used = {"requests.cpu": "10"}, {"requests.cpu": "4"}
    quota = {"kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"hard": hard}}
    full = nothing_seen(quotas=[{**quota, "status": {"hard": hard, "used": used}}])
    assert blockers(needing_gpus(), full) == ["cluster.quota"]
    assert blockers(needing_gpus(), replace(full, fetching=1)) == []


# in which order


@dataclass
class Rendered:
    """As much of a folder as the steps look at."""

    workload: Any
    job: Any
    replicas: int | None = 1
    claim: Any = field(
        default_factory=lambda: {"kind": "PersistentVolumeClaim", "metadata": {"name": "models"}}
    )

    @property
    def objects(self) -> Any:
        return (self.claim, self.job, self.workload)

    def of_kind(self, kind: str) -> Any:
        return [row for row in self.objects if row["kind"] == kind]


def job(image: str = "one", **status: Any) -> Any:
    template = {"spec": {"containers": [{"image": image}]}}
    return {
        "kind": "Job",
        "metadata": {"name": "fetch"},
        "spec": {"template": template},
        "status": status,
    }


def condition(kind: str) -> Any:
    return {"conditions": [{"type": kind, "status": "True"}]}


@pytest.mark.parametrize(
    ("there", "claims", "step"),
    [
        (None, set(), "create"),
        (job(), {"models"}, "leave"),
        (job(**condition("Complete")), {"models"}, "leave"),
        (job(**condition("Failed")), {"models"}, "replace"),
        (job("another"), {"models"}, "replace"),
        # The volume is gone, and what was fetched with it.
        (job(**condition("Complete")), set(), "replace"),
    ],
)
def test_what_becomes_of_the_job(there: Any, claims: set[str], step: str) -> None:
    wanted: Any = Rendered(workload(), job())
    found = steps.plan_steps(wanted, None, there, claims)
    assert found.job == step
    assert (wanted.job in found.first) == (step != "leave")
    assert wanted.workload not in found.first


@pytest.mark.parametrize(
    ("says", "there", "sent", "size"),
    [
        (2, None, 2, None),
        (2, 0, 0, 2),
        (2, 2, 2, None),
        (2, 5, 5, 2),
        # The rendered file says so: 0 stops the model.
        (0, None, 0, None),
        (0, 1, 1, 0),
        (0, 0, 0, None),
        # Who leaves the number out leaves it to an autoscaler; apply starts what was stopped.
        (None, None, None, None),
        (None, 3, 3, None),
        (None, 0, 0, 1),
    ],
)
def test_the_number_of_replicas_is_the_files_and_never_a_conflict(
    says: Any, there: Any, sent: Any, size: Any
) -> None:
    engine = workload()
    engine["spec"] = {} if says is None else {"replicas": says}
    wanted: Any = Rendered(engine, job(), replicas=says)
    row, found = steps.choose_size(wanted, None if there is None else workload(there))
    assert (row["spec"].get("replicas"), found) == (sent, size)


# what changes


def test_values_that_differ_are_named_and_the_clusters_own_are_not() -> None:
    before = {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": {"name": "kimi", "resourceVersion": "1"},
        "spec": {"ports": [{"port": 1}], "type": "ClusterIP"},
        "status": {"x": 1},
    }
    after = {**before, "metadata": {"name": "kimi", "resourceVersion": "2"}, "status": {}}
    assert [row.verdict for row in changes.compare_objects([before], [after])] == ["unchanged"]
    after = {**after, "spec": {"ports": [{"port": 2}], "type": "ClusterIP", "new": "v" * 200}}
    (found,) = changes.compare_objects([before], [after])
    assert found.verdict == "changed"
    assert "spec.ports[0].port: 1 -> 2" in found.values
    assert all(len(value) < 160 for value in found.values)
    assert [row.verdict for row in changes.compare_objects([], [after])] == ["created"]


CANARY = "canary-of-a-secret"


def secret(value: str, **more: Any) -> Any:
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": f'{{"data":"{value}"}}'}
    metadata = {"name": "kimi-web", "annotations": annotations}
    return {
        "kind": "Secret",
        "apiVersion": "v1",
        "metadata": metadata,
        "data": {"a": value},
        **more,
    }


def with_environment(*rows: Any) -> Any:
    containers = [{"name": "engine", "env": list(rows)}]
    return {**workload(), "spec": {"template": {"spec": {"containers": containers}}}}


@pytest.mark.parametrize(
    ("before", "after", "path"),
    [
        (secret(CANARY), secret("eA=="), "data.a"),
        (secret("eA=="), secret(CANARY), "data.a"),
        (secret("eA=="), secret("eA==", stringData={"b": CANARY}), "stringData"),
        (secret("eA==") | {"data": None}, secret(CANARY), "data"),
        (
            with_environment({"name": "HF_TOKEN", "value": CANARY}),
            with_environment({"name": "HF_TOKEN", "value": "x"}),
            "env[0].value",
        ),
        (
            with_environment(),
            with_environment({"name": "api_key", "value": CANARY}, {"name": "A", "value": "1"}),
            "env",
        ),
        (
            {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"DB_PASSWORD": CANARY}},
            {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"DB_PASSWORD": "x"}},
            "data.DB_PASSWORD",
        ),
    ],
)
def test_of_a_secret_that_changes_the_path_is_told_and_no_value(
    before: Any, after: Any, path: str
) -> None:
    (found,) = changes.compare_objects([before], [after])
    assert found.verdict == "changed"
    assert any(path in value.partition(": ")[0] for value in found.values)
    assert CANARY not in str(found)
    assert "eA==" not in str(found)


def test_a_value_of_another_name_is_shown_beside_a_secret_one() -> None:
    hidden = {"name": "HF_TOKEN", "value": CANARY}
    before = with_environment(hidden, {"name": "TOKENIZERS_PARALLELISM", "value": "false"})
    after = with_environment(hidden, {"name": "TOKENIZERS_PARALLELISM", "value": "true"})
    (found,) = changes.compare_objects([before], [after])
    assert found.values == ('spec.template.spec.containers[0].env[1].value: "false" -> "true"',)


# answers that are none


@pytest.mark.parametrize("answer", [None, 7, "x", [], {"metadata": "x"}, {"metadata": {"name": 7}}])
def test_an_answer_of_another_form_has_nothing_in_it(answer: Any) -> None:
    assert answers.read_name(answer) == ""
    assert answers.read_rows(answer, "items") == []
    assert answers.parse_time(answer, "metadata", "time") is None
    assert diagnosis.judge_engine(Snapshot(workload(), pods=[]), Baseline()).state == "starting"


@pytest.mark.parametrize("name", ["-oyaml", "a b", "../x", "UPPER", "x\n", "--all"])
def test_a_name_that_kubernetes_gives_nobody_is_none(name: str) -> None:
    assert answers.read_name({"metadata": {"name": name}}) == ""


# what kubectl's refusals mean
