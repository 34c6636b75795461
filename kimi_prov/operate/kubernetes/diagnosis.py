"""How far the start of a model in a cluster is, and why it does not go on. Pure.

Decides: a rendered folder in a Kubernetes cluster (why it does not go on).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode
from kimi_prov.on_host.troubles.explain import explain_lines
from kimi_prov.operate.kubernetes import answers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kimi_prov.operate.kubernetes.answers import Object

State = Literal["serving", "starting", "stopped", "failed"]
_MAX_LENGTH = 400
_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
_NO_IMAGE = frozenset({"InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_VOLUME = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
_SANDBOX = "FailedCreatePodSandBox"
# Each of these events says that the pod no longer waits.
_PROGRESS_REASONS = frozenset({"Pulling", "Pulled", "SuccessfulAttachVolume"})
# A kubelet tries a volume again after two minutes at most: an older event has passed.
_STALE_S = 150.0
# LeaderWorkerSet's present and former names of the event.
_RECREATED = frozenset({"RecreateGroup", "RecreateGroupOnPodRestart"})
GROUP_REVISION = "leaderworkerset.sigs.k8s.io/template-revision-hash"
_CLAIM = frozenset({"ProvisioningFailed", "FailedBinding"})
_OOM = "OOMKilled"


@dataclass(frozen=True)
class Snapshot:
    """What the cluster says about a folder at one moment.

    `revision`: the present revision, by which a group's pods are labelled.
    """

    workload: Object | None = None
    job: Object | None = None
    pods: Sequence[Object] = ()
    fetching: Sequence[Object] = ()
    claims: Sequence[Object] = ()
    events: Sequence[Object] = ()
    revision: str = ""
    now_unix: float = 0.0


@dataclass(frozen=True)
class Trouble:
    """Why a start does not go on.

    `waits`: the trouble may pass by itself. `log`: pod, container, whether to read its former log.

    `fix` may have {kubectl}, for the command up to its verb.
    """

    cause: str
    fix: str
    exit_code: ExitCode = ExitCode.FAILED
    waits: bool = False
    log: tuple[str, str, bool] | None = None

    @property
    def key(self) -> str:
        """The cause without counts and times, by which two snapshots show the same trouble."""
        return re.sub(r"\d+", "", self.cause)


@dataclass(frozen=True)
class Status:
    """The state of a folder, one line about what happens, and the trouble if there is one."""

    state: State
    line: str
    trouble: Trouble | None = None


@dataclass(frozen=True)
class Baseline:
    """The state when the wait began: restarts of pods by their uid, and the time."""

    restarts: Mapping[str, int] = field(default_factory=dict)
    since_unix: float = 0.0

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot, now_unix: float) -> Baseline:
        """Record the state; since_unix is a little earlier, because clocks differ."""
        pods = [*snapshot.pods, *snapshot.fetching]
        return cls({_read_uid(pod): count_restarts(pod) for pod in pods}, now_unix - 60)


def judge_job(snapshot: Snapshot, before: Baseline) -> Status:
    """Judge the job that fetches the weights."""
    job = snapshot.job
    if job is None:
        return Status("stopped", "no job fetches the weights")
    named = answers.read_name(job)
    if answers.is_condition_true(job, "Complete"):
        return Status("serving", "the weights are fetched and verified")
    if answers.is_condition_true(job, "Failed"):
        pod = next(iter(snapshot.fetching[::-1]), None)
        reason = clean_text.clean_line(
            answers.read_text(answers.find_condition(job, "Failed"), "message")
        )[:_MAX_LENGTH]
        trouble = Trouble(
            f"the job {named}, which fetches the weights, failed: {reason or 'no reason'}",
            "correct what its log says, and apply again: what is fetched is kept",
            log=(answers.read_name(pod), _name_container(pod), False) if pod else None,
        )
        return Status("failed", trouble.cause, trouble)
    pod_trouble = _find_first_trouble(snapshot.fetching, before, {f"Job/{named}"}, snapshot)
    line = _describe_progress(snapshot.fetching, "the job that fetches the weights")
    return Status(
        "failed" if pod_trouble and not pod_trouble.waits else "starting", line, pod_trouble
    )


def judge_engine(snapshot: Snapshot, before: Baseline) -> Status:
    """Judge the workload that serves."""
    workload = snapshot.workload
    if workload is None:
        return Status("stopped", "it is not applied")
    desired, ready = _count_wanted(workload), answers.read_int(workload, "status", "readyReplicas")
    if desired == 0:
        left = len(snapshot.pods)
        return Status("stopped", f"{left} pods end" if left else "scaled to zero")
    current = not _is_behind(workload)
    if ready >= desired and current:
        return Status("serving", f"{ready} of {desired} ready")
    trouble = None if _is_unseen(workload) else _find_workload_trouble(snapshot, workload, before)
    if trouble and not trouble.waits:
        return Status("failed", trouble.cause, trouble)
    line = _describe_progress(snapshot.pods, "the engine", _find_probe_message(snapshot, before))
    return Status("starting", f"{ready} of {desired} ready; {line}", trouble)


def _find_workload_trouble(
    snapshot: Snapshot, workload: Object, before: Baseline
) -> Trouble | None:
    name, desired = answers.read_name(workload), _count_wanted(workload)
    size = answers.read_int(workload, "spec", "leaderWorkerTemplate", "size")
    involved = {f"{answers.read_text(workload, 'kind')}/{name}"}
    if size:
        # Its leaders are of one StatefulSet, the workers of each leader of another.
        involved |= {f"StatefulSet/{name}", *(f"StatefulSet/{name}-{n}" for n in range(desired))}
    # Troubles of a former revision do not count: the present revision shows those that are left.
    revision = snapshot.revision or answers.read_text(workload, "status", "updateRevision")
    pods = [pod for pod in snapshot.pods if not _is_former(pod, revision)]
    return _find_first_trouble(
        pods, before, involved, snapshot, crash=True, group=bool(size), count=desired * max(size, 1)
    )


def judge_status(snapshot: Snapshot) -> Status:
    """Judge a folder from one snapshot: an engine that answers serves, despite restarts."""
    engine = judge_engine(snapshot, replace(Baseline.from_snapshot(snapshot, 0.0), since_unix=0.0))
    if engine.state == "starting" and answers.read_int(
        snapshot.workload, "status", "readyReplicas"
    ):
        return replace(engine, state="serving")
    if engine.state == "stopped" and snapshot.job is not None:
        job = judge_job(snapshot, Baseline())
        return engine if job.state == "serving" else job
    return engine


def _is_behind(workload: Object) -> bool:
    """Whether the controller has not yet seen or rolled out what was applied."""
    if _is_unseen(workload):
        return True
    status = answers.read_mapping(workload, "status")
    updated, revision = status.get("updatedReplicas"), answers.read_text(status, "updateRevision")
    if revision and revision == answers.read_text(status, "currentRevision"):
        return False
    return isinstance(updated, int) and updated < _count_wanted(workload)


def _is_unseen(workload: Object) -> bool:
    seen = answers.read_path(workload, "status", "observedGeneration")
    current = answers.read_path(workload, "metadata", "generation")
    return isinstance(seen, int) and isinstance(current, int) and seen < current


def _count_wanted(workload: Object) -> int:
    replicas = answers.read_path(workload, "spec", "replicas")
    return replicas if isinstance(replicas, int) else 1


def _is_former(pod: Object, revision: str) -> bool:
    labels = answers.read_mapping(pod, "metadata", "labels")
    # A leader has both labels: its own set's and the group's.
    own = labels.get(GROUP_REVISION) or labels.get("controller-revision-hash")
    return bool(revision and own and own != revision)


def count_restarts(pod: Object) -> int:
    """Count how often a pod's containers were started again."""
    return sum(answers.read_int(row, "restartCount") for row in _list_containers(pod))


def _list_containers(pod: Object) -> list[Object]:
    status = answers.read_mapping(pod, "status")
    return [
        *answers.read_rows(status, "initContainerStatuses"),
        *answers.read_rows(status, "containerStatuses"),
    ]


def _name_container(pod: Object) -> str:
    return answers.read_text(next(iter(_list_containers(pod)[::-1]), {}), "name")


def _read_uid(pod: Object) -> str:
    return answers.read_text(pod, "metadata", "uid")


def _find_first_trouble(
    pods: Sequence[Object],
    before: Baseline,
    involved: set[str],
    snapshot: Snapshot,
    *,
    crash: bool = False,
    group: bool = False,
    count: int = 1,
) -> Trouble | None:
    """Return the trouble to report: one that will not pass by itself comes first.

    `crash`: whether a container that ends is one. `count`: how many pods there should be.
    """
    # An autoscaler adds a node: that takes as long as it takes.
    awaited = {
        _name_event_object(row)
        for row in _select_new(snapshot.events, before)
        if answers.read_text(row, "reason") == "TriggeredScaleUp"
    }
    judged = [pod for pod in pods if f"Pod/{answers.read_name(pod)}" not in awaited]
    troubles = [
        *(t for pod in judged for t in _find_pod_troubles(pod, before, crash=crash, group=group)),
        *_find_claim_troubles(snapshot, before),
        *_find_event_troubles(snapshot, pods, involved, before, lacks=len(pods) < count),
        *_find_group_troubles(snapshot.events, involved, before),
    ]
    return next((t for t in troubles if not t.waits), next(iter(troubles), None))


def _find_pod_troubles(
    pod: Object, before: Baseline, *, crash: bool, group: bool
) -> Iterator[Trouble]:
    name = answers.read_name(pod)
    if answers.read_path(pod, "metadata", "deletionTimestamp"):
        # A group is deleted at the first restart of any container: only here its crash is seen.
        if group and count_restarts(pod) > before.restarts.get(_read_uid(pod), 0):
            for row in _list_containers(pod):
                yield from _find_container_troubles(pod, row, before, crash=crash)
        return
    scheduled = answers.find_condition(pod, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        yield explain_unschedulable(
            name, clean_text.clean_line(answers.read_text(scheduled, "message"))
        )
    if answers.read_text(pod, "status", "reason") == "Evicted":
        message = clean_text.clean_line(answers.read_text(pod, "status", "message"))[:_MAX_LENGTH]
        yield Trouble(f"the pod {name} was evicted: {message}", _describe_pod(pod))
    for row in _list_containers(pod):
        yield from _find_container_troubles(pod, row, before, crash=crash)


def _find_container_troubles(
    pod: Object, row: Object, before: Baseline, *, crash: bool
) -> Iterator[Trouble]:
    name, container = answers.read_name(pod), clean_text.clean_line(answers.read_text(row, "name"))
    waiting = answers.read_mapping(row, "state", "waiting")
    reason = answers.read_text(waiting, "reason")
    message = clean_text.clean_line(answers.read_text(waiting, "message"))[:_MAX_LENGTH]
    image = clean_text.clean_line(answers.read_text(row, "image"))
    if reason in _IMAGE | _NO_IMAGE:
        yield Trouble(
            f"the image {image} of the pod {name} is not pulled: {message or reason}",
            "push it to a registry that the nodes reach, name it with --image at render, and give "
            "imagePullSecrets where the registry wants a login",
            waits=reason in _IMAGE,
        )
    if reason in _CONFIG:
        yield Trouble(f"the pod {name} cannot start: {message or reason}", _describe_pod(pod))
    killed = [answers.read_mapping(row, when, "terminated") for when in ("state", "lastState")]
    newly = (
        count_restarts(pod) > before.restarts.get(_read_uid(pod), 0) or reason == "CrashLoopBackOff"
    )
    if not (newly or answers.read_mapping(row, "state", "terminated")):
        return
    ended = next((state for state in killed if state), {})
    if ended.get("reason") == _OOM:
        yield Trouble(
            f"the container {container} of {name} used more memory than its limit and was killed "
            "(OOMKilled)",
            "render again with a smaller kimi_context or kimi_concurrency, or raise the pod's "
            "memory with its memory-backed volumes counted in",
            log=(name, container, newly),
        )
    elif crash and ended and newly:
        code = answers.read_int(ended, "exitCode")
        yield Trouble(
            f"the container {container} of {name} ended with exit code {code}"
            f"{_describe_restarts(count_restarts(pod))}",
            "correct what its log says, render and apply again",
            log=(name, container, not answers.read_mapping(row, "state", "terminated")),
        )


def _describe_restarts(count: int) -> str:
    return f", started {count + 1} times" if count else ""


def _describe_pod(pod: Object) -> str:
    return f"{{kubectl}} describe pod {answers.read_name(pod)}"


# What the scheduler says is missing, and what to do about it; the first match counts.
_LACKS = {
    r"Insufficient [a-z0-9.-]+/": "end what holds them, or add a node with them and "
    "their plugin:  {kubectl} get nodes "
    "-o custom-columns=NODE:.metadata.name,GPUS:.status.allocatable.nvidia\\.com/gpu",
    r"Insufficient (?:cpu|memory|ephemeral-storage|hugepages-)": "end what uses it, or add a "
    "larger node:  {kubectl} describe nodes",
    r"unbound immediate PersistentVolumeClaims|persistentvolumeclaim": "see why the volume is not "
    "bound:  {kubectl} describe pvc",
    r"volume node affinity conflict": "the volume is tied to another node: take a storage class "
    "that several nodes reach, or free the node that has it",
    r"untolerated taint": "add the toleration to the pods, or take the taint away:  {kubectl} get "
    "nodes -o custom-columns=NODE:.metadata.name,TAINTS:.spec.taints",
    r"node affinity|node selector": "label a node as the pods' nodeSelector asks:  {kubectl} get "
    "nodes --show-labels",
}


def explain_unschedulable(pod: str, message: str) -> Trouble:
    """Say why a pod is on no node."""
    short = (
        message.partition(" preemption:")[0].rstrip(". ")[:_MAX_LENGTH] or "the scheduler gave none"
    )
    fix = next((fix for pattern, fix in _LACKS.items() if re.search(pattern, message)), None)
    return Trouble(
        f"the pod {pod} fits on no node: {short}",
        fix or f"{{kubectl}} describe pod {pod}",
        ExitCode.BLOCKED,
        waits=True,
    )


def _find_claim_troubles(snapshot: Snapshot, before: Baseline) -> Iterator[Trouble]:
    for row in snapshot.claims:
        name, phase = answers.read_name(row), answers.read_text(row, "status", "phase")
        if phase == "Lost":
            yield Trouble(
                f"the volume of the claim {name} is lost", f"{{kubectl}} describe pvc {name}"
            )
        if phase != "Pending":
            continue
        events_of_claims = [
            e
            for e in _select_new(snapshot.events, before)
            if _name_event_object(e) == f"PersistentVolumeClaim/{name}"
        ]
        failed = [e for e in events_of_claims if answers.read_text(e, "reason") in _CLAIM]
        if failed:
            message = clean_text.clean_line(answers.read_text(failed[-1], "message"))[:_MAX_LENGTH]
            yield Trouble(
                f"the claim {name} gets no volume: {message}",
                f"correct its storage class or size:  {{kubectl}} describe pvc {name}",
                ExitCode.BLOCKED,
                waits=True,
            )


def _find_event_troubles(
    snapshot: Snapshot, pods: Sequence[Object], involved: set[str], before: Baseline, *, lacks: bool
) -> Iterator[Trouble]:
    """Give troubles that only events show: a pod was not created (`lacks`), or does not start."""
    waiting = {f"Pod/{answers.read_name(pod)}" for pod in pods if _is_creating(pod)}
    events = _select_new(snapshot.events, before)
    for row in events:
        about, reason = _name_event_object(row), answers.read_text(row, "reason")
        message = clean_text.clean_line(answers.read_text(row, "message"))[:_MAX_LENGTH]
        if about in involved and reason == "FailedCreate" and lacks:
            quota = "exceeded quota" in message
            yield Trouble(
                f"no pod is created: {message}",
                "ask who runs the cluster for a larger quota:  {kubectl} describe resourcequota"
                if quota
                else "{kubectl} get events",
                ExitCode.BLOCKED if quota else ExitCode.FAILED,
                waits=not quota,
            )
        if about not in waiting or _has_passed(row, events, snapshot.now_unix):
            continue
        pod = about.partition("/")[2]
        if reason in _VOLUME:
            cause = f"the pod {pod} waits for a volume: {message}"
            yield Trouble(cause, f"{{kubectl}} describe pod {pod}", waits=True)
        if reason == _SANDBOX:
            cause = f"the pod {pod} is not begun on its node: {message}"
            yield Trouble(cause, f"{{kubectl}} describe pod {pod}", waits=True)


def _has_passed(row: Object, events: Iterable[Object], now_unix: float) -> bool:
    """Whether a pod has gone on since the event that says it waits."""
    when, about = _read_event_time(row), _name_event_object(row)
    return now_unix - when > _STALE_S or any(
        _read_event_time(other) >= when
        for other in events
        if _name_event_object(other) == about
        and answers.read_text(other, "reason") in _PROGRESS_REASONS
    )


def _find_group_troubles(
    events: Iterable[Object], involved: set[str], before: Baseline
) -> Iterator[Trouble]:
    """Give the trouble of a group that is created again and again: no pod counts its restarts."""
    recreations = [
        row
        for row in _select_new(events, before)
        if _name_event_object(row) in involved and answers.read_text(row, "reason") in _RECREATED
    ]
    times = sum(
        max(answers.read_int(row, "count"), answers.read_int(row, "series", "count"), 1)
        for row in recreations
    )
    if times > 1:
        message = clean_text.clean_line(answers.read_text(recreations[-1], "message"))[:_MAX_LENGTH]
        yield Trouble(
            f"the group was made anew {times} times: {message}",
            "see what its pods say while they run:  {kubectl} logs --follow POD",
        )


def _select_new(events: Iterable[Object], before: Baseline) -> list[Object]:
    return [row for row in events if _read_event_time(row) >= before.since_unix]


def _read_event_time(event: Object) -> float:
    """Return when an event was seen last; events of one kind are counted, not repeated."""
    times = [
        answers.parse_time(event, *path)
        for path in (("lastTimestamp",), ("series", "lastObservedTime"), ("eventTime",))
    ]
    return max([time for time in times if time is not None], default=0.0)


def _name_event_object(event: Object) -> str:
    involved = answers.read_mapping(event, "involvedObject")
    return f"{answers.read_text(involved, 'kind')}/{answers.read_text(involved, 'name')}"


def _is_creating(pod: Object) -> bool:
    return any(
        answers.read_text(row, "state", "waiting", "reason")
        in ("ContainerCreating", "PodInitializing")
        for row in _list_containers(pod)
    )


def _find_probe_message(snapshot: Snapshot, before: Baseline) -> str:
    """Return what the last probe of a pod that is not ready said: why the model does not answer."""
    pods = {
        f"Pod/{answers.read_name(pod)}"
        for pod in snapshot.pods
        if not answers.is_condition_true(pod, "Ready")
    }
    messages = [
        row
        for row in sorted(_select_new(snapshot.events, before), key=_read_event_time)
        if _name_event_object(row) in pods and answers.read_text(row, "reason") == "Unhealthy"
    ]
    return (
        clean_text.clean_line(answers.read_text(messages[-1], "message")).partition(": ")[2][:160]
        if messages
        else ""
    )


def _describe_progress(pods: Sequence[Object], what: str, probe: str = "") -> str:
    """Say in one line what the pods are at."""
    if not pods:
        return f"{what} has no pod yet"
    words = []
    for pod in pods:
        phase = answers.read_text(pod, "status", "phase").lower() or "not known"
        waiting = [
            answers.read_text(row, "state", "waiting", "reason") for row in _list_containers(pod)
        ]
        reason = next((word for word in waiting if word), "")
        words.append(f"{answers.read_name(pod)} {phase}{f' ({reason})' if reason else ''}")
    progress = clean_text.clean_line(", ".join(words))[:200]
    return f"{progress}: {probe}" if probe else progress


# Lines of an engine's log that say why it ended, and what to do; the first match counts.
_LOG = {
    r"CUDA out of memory|OutOfMemoryError|No available memory for the cache blocks"
    r"|larger than the maximum number of tokens": "render again with a smaller kimi_context or "
    "kimi_concurrency, and apply",
    r"CUDA driver version is insufficient|no kernel image is available|unsupported toolchain"
    r"|driver on your system is too old": "take nodes with the driver branch that the plan names:  "
    "{kubectl} get nodes -L nvidia.com/cuda.driver.major",
    r"No space left on device": "enlarge the volume, or the limit of the memory-backed one that is "
    "full",
    r"ncclSystemError|ncclRemoteError|NCCL (?:error|WARN)": "see that the group's pods reach each "
    "other: network policies, NCCL_SOCKET_IFNAME",
}


def add_log(trouble: Trouble, log: str) -> Trouble:
    """Add to a trouble what a container's log says about it."""
    lines = [line for line in clean_text.clean_block(log).splitlines() if line.strip()]
    if not lines:
        return trouble
    explanation = explain_lines(lines)
    if explanation is not None:
        cause = f"{trouble.cause}: {explanation.title}: {_extract_message(explanation.line)}"
        return replace(trouble, cause=cause, fix=explanation.fix)
    for pattern, fix in _LOG.items():
        for line in reversed(lines):
            if re.search(pattern, line):
                return replace(trouble, cause=f"{trouble.cause}: {_extract_message(line)}", fix=fix)
    return replace(trouble, cause=f"{trouble.cause}; its last line: {_extract_message(lines[-1])}")


def _extract_message(line: str) -> str:
    return clean_text.clean_line(line)[:_MAX_LENGTH]
