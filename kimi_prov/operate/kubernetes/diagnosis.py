"""How far a model in a cluster is, and why it goes no further: from what the cluster says. Pure.

Decides: a rendered folder in a Kubernetes cluster (why it does not go on).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode
from kimi_prov.operate.kubernetes import answers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kimi_prov.operate.kubernetes.answers import Object

State = Literal["serving", "starting", "stopped", "failed"]
_LONGEST = 400
_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
_NO_IMAGE = frozenset({"InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_VOLUME = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
_SANDBOX = "FailedCreatePodSandBox"
# Any of them says that what a pod waited for is there.
_WENT_ON = frozenset({"Pulling", "Pulled", "SuccessfulAttachVolume"})
# A kubelet tries a volume again after two minutes at most: what it tells no more has passed.
_STALE_S = 150.0
# LeaderWorkerSet's names for it, of now and of before.
_RECREATED = frozenset({"RecreateGroup", "RecreateGroupOnPodRestart"})
GROUP_REVISION = "leaderworkerset.sigs.k8s.io/template-revision-hash"
_CLAIM = frozenset({"ProvisioningFailed", "FailedBinding"})
_OOM = "OOMKilled"


@dataclass(frozen=True)
class Snapshot:
    """What the cluster says of a folder at one moment.

    `revision`: what a group's pods are labelled with by now.
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
    """Why it goes no further.

    `waits`: it may pass by itself. `log`: pod, container, and whether its former run wrote it.

    `fix` may have {kubectl}, for the command up to its verb.
    """

    cause: str
    fix: str
    exit_code: ExitCode = ExitCode.FAILED
    waits: bool = False
    log: tuple[str, str, bool] | None = None

    @property
    def key(self) -> str:
        """What makes it the same trouble at the next look: its counts and times left out."""
        return re.sub(r"\d+", "", self.cause)


@dataclass(frozen=True)
class Standing:
    """Where it stands: the state, one line of what is going on, and what is in the way."""

    state: State
    line: str
    trouble: Trouble | None = None


@dataclass(frozen=True)
class Before:
    """What was already so when the wait began: restarts of pods by their uid, and when it began."""

    restarts: Mapping[str, int] = field(default_factory=dict)
    since_unix: float = 0.0

    @classmethod
    def of(cls, snapshot: Snapshot, now_unix: float) -> Before:
        """Remember it; events may come a little before, for clocks differ."""
        pods = [*snapshot.pods, *snapshot.fetching]
        return cls({_uid(pod): restarts(pod) for pod in pods}, now_unix - 60)


def of_job(snapshot: Snapshot, before: Before) -> Standing:
    """Judge the job that fetches the weights."""
    job = snapshot.job
    if job is None:
        return Standing("stopped", "no job fetches the weights")
    named = answers.name(job)
    if answers.holds(job, "Complete"):
        return Standing("serving", "the weights are fetched and verified")
    if answers.holds(job, "Failed"):
        pod = next(iter(snapshot.fetching[::-1]), None)
        why = clean_text.clean_line(answers.text(answers.condition(job, "Failed"), "message"))
        trouble = Trouble(
            f"the job {named}, which fetches the weights, failed: {why[:_LONGEST] or 'no reason'}",
            "correct what its log says, and apply again: what is fetched is kept",
            log=(answers.name(pod), _container(pod), False) if pod else None,
        )
        return Standing("failed", trouble.cause, trouble)
    found = _first(snapshot.fetching, before, {f"Job/{named}"}, snapshot)
    line = _going_on(snapshot.fetching, "the job that fetches the weights")
    return Standing("failed" if found and not found.waits else "starting", line, found)


def of_engine(snapshot: Snapshot, before: Before) -> Standing:
    """Judge the workload that serves."""
    workload = snapshot.workload
    if workload is None:
        return Standing("stopped", "it is not applied")
    wanted, ready = _wanted(workload), answers.whole(workload, "status", "readyReplicas")
    if wanted == 0:
        left = len(snapshot.pods)
        return Standing("stopped", f"{left} pods end" if left else "scaled to zero")
    current = not _behind(workload)
    if ready >= wanted and current:
        return Standing("serving", f"{ready} of {wanted} ready")
    trouble = None if _unseen(workload) else _of_workload(snapshot, workload, before)
    if trouble and not trouble.waits:
        return Standing("failed", trouble.cause, trouble)
    line = _going_on(snapshot.pods, "the engine", _probe(snapshot, before))
    return Standing("starting", f"{ready} of {wanted} ready; {line}", trouble)


def _of_workload(snapshot: Snapshot, workload: Object, before: Before) -> Trouble | None:
    name, wanted = answers.name(workload), _wanted(workload)
    size = answers.whole(workload, "spec", "leaderWorkerTemplate", "size")
    involved = {f"{answers.text(workload, 'kind')}/{name}"}
    if size:
        # Its leaders are of one StatefulSet, the workers of each leader of another.
        involved |= {f"StatefulSet/{name}", *(f"StatefulSet/{name}-{n}" for n in range(wanted))}
    # What a former revision suffers from was mended, or is told by the present one.
    revision = snapshot.revision or answers.text(workload, "status", "updateRevision")
    pods = [pod for pod in snapshot.pods if not _former(pod, revision)]
    return _first(
        pods, before, involved, snapshot, crash=True, group=bool(size), count=wanted * max(size, 1)
    )


def of_status(snapshot: Snapshot) -> Standing:
    """Judge all of it for who looks once: an engine that answers serves, whatever it restarted."""
    engine = of_engine(snapshot, replace(Before.of(snapshot, 0.0), since_unix=0.0))
    if engine.state == "starting" and answers.whole(snapshot.workload, "status", "readyReplicas"):
        return replace(engine, state="serving")
    if engine.state == "stopped" and snapshot.job is not None:
        job = of_job(snapshot, Before())
        return engine if job.state == "serving" else job
    return engine


def _behind(workload: Object) -> bool:
    """Whether the controller has yet to see, or to roll out, what was applied."""
    if _unseen(workload):
        return True
    status = answers.mapping(workload, "status")
    updated, revision = status.get("updatedReplicas"), answers.text(status, "updateRevision")
    if revision and revision == answers.text(status, "currentRevision"):
        return False
    return isinstance(updated, int) and updated < _wanted(workload)


def _unseen(workload: Object) -> bool:
    seen = answers.at(workload, "status", "observedGeneration")
    current = answers.at(workload, "metadata", "generation")
    return isinstance(seen, int) and isinstance(current, int) and seen < current


def _wanted(workload: Object) -> int:
    found = answers.at(workload, "spec", "replicas")
    return found if isinstance(found, int) else 1


def _former(pod: Object, revision: str) -> bool:
    labels = answers.mapping(pod, "metadata", "labels")
    # A leader has both: its own set's, and the group's.
    own = labels.get(GROUP_REVISION) or labels.get("controller-revision-hash")
    return bool(revision and own and own != revision)


def restarts(pod: Object) -> int:
    """Count how often a pod's containers were started again."""
    return sum(answers.whole(row, "restartCount") for row in _containers(pod))


def _containers(pod: Object) -> list[Object]:
    status = answers.mapping(pod, "status")
    return [
        *answers.rows(status, "initContainerStatuses"),
        *answers.rows(status, "containerStatuses"),
    ]


def _container(pod: Object) -> str:
    return answers.text(next(iter(_containers(pod)[::-1]), {}), "name")


def _uid(pod: Object) -> str:
    return answers.text(pod, "metadata", "uid")


def _first(
    pods: Sequence[Object],
    before: Before,
    involved: set[str],
    snapshot: Snapshot,
    *,
    crash: bool = False,
    group: bool = False,
    count: int = 1,
) -> Trouble | None:
    """Return the trouble to tell: what will not pass by itself before what may.

    `crash`: whether a container that ends is one. `count`: how many pods there should be.
    """
    # An autoscaler adds a node: that takes as long as it takes.
    awaited = {
        _about(row)
        for row in _new(snapshot.events, before)
        if answers.text(row, "reason") == "TriggeredScaleUp"
    }
    judged = [pod for pod in pods if f"Pod/{answers.name(pod)}" not in awaited]
    found = [
        *(t for pod in judged for t in _of_pod(pod, before, crash=crash, group=group)),
        *_of_claims(snapshot, before),
        *_of_events(snapshot, pods, involved, before, lacks=len(pods) < count),
        *_of_group(snapshot.events, involved, before),
    ]
    return next((t for t in found if not t.waits), next(iter(found), None))


def _of_pod(pod: Object, before: Before, *, crash: bool, group: bool) -> Iterator[Trouble]:
    name = answers.name(pod)
    if answers.at(pod, "metadata", "deletionTimestamp"):
        # A group is deleted at the first restart of any: this is where its crash is seen.
        if group and restarts(pod) > before.restarts.get(_uid(pod), 0):
            for row in _containers(pod):
                yield from _of_container(pod, row, before, crash=crash)
        return
    scheduled = answers.condition(pod, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        yield unschedulable(name, clean_text.clean_line(answers.text(scheduled, "message")))
    if answers.text(pod, "status", "reason") == "Evicted":
        message = clean_text.clean_line(answers.text(pod, "status", "message"))[:_LONGEST]
        yield Trouble(f"the pod {name} was evicted: {message}", _describe(pod))
    for row in _containers(pod):
        yield from _of_container(pod, row, before, crash=crash)


def _of_container(pod: Object, row: Object, before: Before, *, crash: bool) -> Iterator[Trouble]:
    name, container = answers.name(pod), clean_text.clean_line(answers.text(row, "name"))
    waiting = answers.mapping(row, "state", "waiting")
    reason = answers.text(waiting, "reason")
    message = clean_text.clean_line(answers.text(waiting, "message"))[:_LONGEST]
    image = clean_text.clean_line(answers.text(row, "image"))
    if reason in _IMAGE | _NO_IMAGE:
        yield Trouble(
            f"the image {image} of the pod {name} is not pulled: {message or reason}",
            "push it to a registry that the nodes reach, name it with --image at render, and give "
            "imagePullSecrets where the registry wants a login",
            waits=reason in _IMAGE,
        )
    if reason in _CONFIG:
        yield Trouble(f"the pod {name} cannot start: {message or reason}", _describe(pod))
    killed = [answers.mapping(row, when, "terminated") for when in ("state", "lastState")]
    newly = restarts(pod) > before.restarts.get(_uid(pod), 0) or reason == "CrashLoopBackOff"
    if not (newly or answers.mapping(row, "state", "terminated")):
        return
    ended = next((found for found in killed if found), {})
    if ended.get("reason") == _OOM:
        yield Trouble(
            f"the container {container} of {name} used more memory than its limit and was killed "
            "(OOMKilled)",
            "render again with a smaller kimi_context or kimi_concurrency, or raise the pod's "
            "memory with its memory-backed volumes counted in",
            log=(name, container, newly),
        )
    elif crash and ended and newly:
        code = answers.whole(ended, "exitCode")
        yield Trouble(
            f"the container {container} of {name} ended with exit code {code}"
            f"{_restarted(restarts(pod))}",
            "correct what its log says, render and apply again",
            log=(name, container, not answers.mapping(row, "state", "terminated")),
        )


def _restarted(count: int) -> str:
    return f", started {count + 1} times" if count else ""


def _describe(pod: Object) -> str:
    return f"{{kubectl}} describe pod {answers.name(pod)}"


# What a scheduler says is lacking, and what to do about it; the first that is named counts.
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


def unschedulable(pod: str, message: str) -> Trouble:
    """Say why a pod is on no node."""
    short = (
        message.partition(" preemption:")[0].rstrip(". ")[:_LONGEST] or "the scheduler gave none"
    )
    fix = next((fix for pattern, fix in _LACKS.items() if re.search(pattern, message)), None)
    return Trouble(
        f"the pod {pod} fits on no node: {short}",
        fix or f"{{kubectl}} describe pod {pod}",
        ExitCode.BLOCKED,
        waits=True,
    )


def _of_claims(snapshot: Snapshot, before: Before) -> Iterator[Trouble]:
    for row in snapshot.claims:
        name, phase = answers.name(row), answers.text(row, "status", "phase")
        if phase == "Lost":
            yield Trouble(
                f"the volume of the claim {name} is lost", f"{{kubectl}} describe pvc {name}"
            )
        if phase != "Pending":
            continue
        told = [
            e for e in _new(snapshot.events, before) if _about(e) == f"PersistentVolumeClaim/{name}"
        ]
        failed = [e for e in told if answers.text(e, "reason") in _CLAIM]
        if failed:
            message = clean_text.clean_line(answers.text(failed[-1], "message"))[:_LONGEST]
            yield Trouble(
                f"the claim {name} gets no volume: {message}",
                f"correct its storage class or size:  {{kubectl}} describe pvc {name}",
                ExitCode.BLOCKED,
                waits=True,
            )


def _of_events(
    snapshot: Snapshot, pods: Sequence[Object], involved: set[str], before: Before, *, lacks: bool
) -> Iterator[Trouble]:
    """Tell what no pod says: that one could not be created (`lacks`), or is not begun."""
    waiting = {f"Pod/{answers.name(pod)}" for pod in pods if _creating(pod)}
    events = _new(snapshot.events, before)
    for row in events:
        about, reason = _about(row), answers.text(row, "reason")
        message = clean_text.clean_line(answers.text(row, "message"))[:_LONGEST]
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
        if about not in waiting or _passed(row, events, snapshot.now_unix):
            continue
        pod = about.partition("/")[2]
        if reason in _VOLUME:
            cause = f"the pod {pod} waits for a volume: {message}"
            yield Trouble(cause, f"{{kubectl}} describe pod {pod}", waits=True)
        if reason == _SANDBOX:
            cause = f"the pod {pod} is not begun on its node: {message}"
            yield Trouble(cause, f"{{kubectl}} describe pod {pod}", waits=True)


def _passed(row: Object, events: Iterable[Object], now_unix: float) -> bool:
    """Whether a pod has gone on since it told that it waits."""
    when, about = _when(row), _about(row)
    return now_unix - when > _STALE_S or any(
        _when(other) >= when
        for other in events
        if _about(other) == about and answers.text(other, "reason") in _WENT_ON
    )


def _of_group(events: Iterable[Object], involved: set[str], before: Before) -> Iterator[Trouble]:
    """Tell of a group that is made anew time and again: its pods' restarts go with them."""
    told = [
        row
        for row in _new(events, before)
        if _about(row) in involved and answers.text(row, "reason") in _RECREATED
    ]
    times = sum(
        max(answers.whole(row, "count"), answers.whole(row, "series", "count"), 1) for row in told
    )
    if times > 1:
        message = clean_text.clean_line(answers.text(told[-1], "message"))[:_LONGEST]
        yield Trouble(
            f"the group was made anew {times} times: {message}",
            "see what its pods say while they run:  {kubectl} logs --follow POD",
        )


def _new(events: Iterable[Object], before: Before) -> list[Object]:
    return [row for row in events if _when(row) >= before.since_unix]


def _when(event: Object) -> float:
    """Return when an event was seen last; events of one kind are counted, not repeated."""
    times = [
        answers.unix(event, *path)
        for path in (("lastTimestamp",), ("series", "lastObservedTime"), ("eventTime",))
    ]
    return max([found for found in times if found is not None], default=0.0)


def _about(event: Object) -> str:
    found = answers.mapping(event, "involvedObject")
    return f"{answers.text(found, 'kind')}/{answers.text(found, 'name')}"


def _creating(pod: Object) -> bool:
    return any(
        answers.text(row, "state", "waiting", "reason") in ("ContainerCreating", "PodInitializing")
        for row in _containers(pod)
    )


def _probe(snapshot: Snapshot, before: Before) -> str:
    """Return what the last probe of a pod that is not ready said: why the model does not answer."""
    pods = {f"Pod/{answers.name(pod)}" for pod in snapshot.pods if not answers.holds(pod, "Ready")}
    told = [
        row
        for row in sorted(_new(snapshot.events, before), key=_when)
        if _about(row) in pods and answers.text(row, "reason") == "Unhealthy"
    ]
    return (
        clean_text.clean_line(answers.text(told[-1], "message")).partition(": ")[2][:160]
        if told
        else ""
    )


def _going_on(pods: Sequence[Object], what: str, probe: str = "") -> str:
    """Say in one line what the pods are at."""
    if not pods:
        return f"{what} has no pod yet"
    words = []
    for pod in pods:
        phase = answers.text(pod, "status", "phase").lower() or "not known"
        waiting = [answers.text(row, "state", "waiting", "reason") for row in _containers(pod)]
        reason = next((word for word in waiting if word), "")
        words.append(f"{answers.name(pod)} {phase}{f' ({reason})' if reason else ''}")
    told = clean_text.clean_line(", ".join(words))[:200]
    return f"{told}: {probe}" if probe else told


# Lines of an engine's log that say why it ended, and what to do: the first pattern that is found.
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


def of_log(trouble: Trouble, log: str) -> Trouble:
    """Add to a trouble what a container's log says of it."""
    lines = [line for line in clean_text.clean_block(log).splitlines() if line.strip()]
    if not lines:
        return trouble
    for pattern, fix in _LOG.items():
        for line in reversed(lines):
            if re.search(pattern, line):
                return replace(trouble, cause=f"{trouble.cause}: {_said(line)}", fix=fix)
    return replace(trouble, cause=f"{trouble.cause}; its last line: {_said(lines[-1])}")


def _said(line: str) -> str:
    return clean_text.clean_line(line)[:_LONGEST]
