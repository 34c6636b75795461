"""Answers of the code on a managed machine that are not a host's part of a document.

`kimi_prov.on_host.__main__.COMMANDS` names the type of each subcommand's answer. Keys that a
machine of an earlier version does not send are not required.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from kimi_prov.contract.documents.facts import Facts
from kimi_prov.contract.documents.findings import ToldFinding
from kimi_prov.contract.documents.form import (
    Bytes,
    Count,
    NotRequired,
    Recorded,
    Required,
    Sha256,
    WeightsHeldIn,
)
from kimi_prov.contract.documents.history import ServedSide
from kimi_prov.contract.documents.lock import LockAnswer
from kimi_prov.contract.documents.status.activity import NowStatus
from kimi_prov.contract.documents.status.host import AppliedBy, CertificateStatus
from kimi_prov.contract.documents.status.machine import HostMemory, WatchdogStatus


class Done(TypedDict, total=False):
    """A step that was done, or would be."""

    ok: bool
    changed: bool
    changes: list[str]
    """What changed, in sentences."""
    warnings: list[str]


class Changed(TypedDict):
    """A step that says whether it changed anything."""

    changed: bool


class Applied(Changed):
    """A unit that was converged, and how."""

    did: str


class SettledAnswer(TypedDict):
    """Whether the machine is as it was applied, and the first difference."""

    settled: bool
    differs: str | None


class FollowAnswer(TypedDict):
    """The progress of a unit that works by itself."""

    unit: dict[str, str]
    """systemd's properties of the unit."""
    progress: NotRequired[dict[str, Any] | None]
    journal: NotRequired[list[str]]
    """The unit's last lines, where it failed."""


class JournalEntry(TypedDict):
    """A line of a journal."""

    time_us: int
    unit: str
    priority: int | None
    message: str


class JournalAnswer(TypedDict):
    """Lines of units' journals."""

    entries: list[JournalEntry]
    cursor: str | None
    """The cursor for the next question."""
    cut: NotRequired[bool]
    """There were more lines."""


class ServeAnswer(Changed):
    """The engines' units after a convergence."""

    started: list[str]
    restarted: list[str]
    removed: list[str]
    reasons: dict[str, list[str]]
    """Why each of those restarts."""
    written: list[WrittenFile]
    made: list[str]


class WrittenFile(TypedDict):
    """A file that was written, or would be."""

    path: str
    before: str
    after: str


class SmokeTestAnswer(TypedDict):
    """Whether the model returns a token."""

    ok: Literal[True]
    answered: bool
    refusal: str
    """The reason, where it does not; else empty."""
    restarts: dict[str, int]
    """By unit."""
    line: NotRequired[str]
    """The engine's last line."""


class ProxyAnswer(Changed):
    """The certificate and the keys after a convergence."""

    certificate: NotRequired[dict[str, Any]]
    keys: PublishedKeys
    converged: NotRequired[bool]
    """Whether the proxy runs the present configuration."""


class PublishedKeys(Changed):
    """API keys by their names, and how the proxy loaded them."""

    names: list[str]
    created: list[str]
    removed: list[str]
    applied: NotRequired[str]


class WebUiAnswer(Applied):
    """The web UI after a convergence."""

    changes: list[str]


class AcmeAnswer(Changed):
    """The result of an ACME order."""

    ordered: str
    """The reason of the order; empty without one."""
    warning: str | None


class MonitorAnswer(Changed):
    """Prometheus and Alertmanager after a convergence."""

    did: list[str]
    unknown: list[str]
    """Hosts that were never reached."""


class MonitorStateAnswer(Changed):
    """The state from before the monitor is installed."""

    missing: NotRequired[list[str]]
    user_missing: NotRequired[bool]


class KeysAnswer(TypedDict, total=False):
    """API keys: one that was made or removed, or the host that has the keys."""

    key: str | None
    """In clear, once."""
    web_admin: dict[str, str] | None
    uncounted: list[int]
    """Instances whose engine started before it could count."""
    elsewhere: str
    """Why nothing was done here."""


class KeyListAnswer(TypedDict, total=False):
    """The API keys of a host."""

    names: list[str]
    keys: list[KeyEntry]
    elsewhere: str
    """Why nothing was done here."""


class KeyEntry(TypedDict, total=False):
    """An API key; times are seconds since 1970."""

    name: Required[str]
    made: float | None
    ends: float | None
    limits: dict[str, int] | None
    last_used: float | None
    ended: bool


class TakenOver(TypedDict):
    """What interrupted runs left."""

    interrupted: InterruptedSwitch | None
    cut: list[str]


_LeftEntry = TypedDict("_LeftEntry", {"from": int}, total=False)


class SwitchBegun(_LeftEntry, total=False):
    """Whether a switch was opened, and what was removed before it."""

    opened: Required[bool]
    to: int
    freed: list[str]


class SwitchAnswer(SwitchBegun, TakenOver):
    """A switch to another version that was opened, or was not needed."""


class RollbackAnswer(SwitchAnswer, total=False):
    """A switch back to an earlier version."""

    restores: int
    group: SwitchedGroup | None


class SwitchedGroup(TypedDict):
    """The hosts that switch to another version together."""

    hosts: list[str]
    digest: str


# `from` is a keyword of Python.
_Left = TypedDict("_Left", {"from": int})


class InterruptedSwitch(_Left):
    """A switch that an earlier run left."""

    entry: int
    phase: Literal["writing", "switching", "returning"]
    serves: ServedSide


class RecordedApply(TypedDict):
    """What was recorded of an apply."""

    entry: int | None
    dropped: NotRequired[list[int]]


class EndedApply(RecordedApply):
    """What was recorded of an apply, and lines about its switch."""

    told: list[str]


class SwitchEndAnswer(EndedApply, LockAnswer):
    """The same, the lock, which is released, and whether a key or a password was not shown yet."""

    key_waits: NotRequired[bool]


class SwitchStartAnswer(TypedDict):
    """Whether the unit that switches was started."""

    started: bool


class LifecycleAnswer(TypedDict, total=False):
    """How a machine stops or starts."""

    started: bool
    was: str
    left_out: bool
    together: bool
    unit: str
    progress: str
    timeout_s: float
    since: str | None
    expected: ExpectedStart | None
    instances: int
    fills: list[FillingUnit]
    cut: int | None
    seconds: float | None
    mark: dict[str, Any] | None
    start: MeasuredStart | None
    held: WeightsHeldIn


class ExpectedStart(TypedDict):
    """The estimate of a start."""

    seconds: float | None
    basis: str


class BegunStart(TypedDict):
    """A start that was requested."""

    held: WeightsHeldIn
    expected: ExpectedStart


class FillingUnit(TypedDict):
    """A unit that fills memory, and its progress file."""

    unit: str
    progress: str


class MeasuredStart(TypedDict):
    """A start that was measured."""

    id: NotRequired[str]
    at: str
    seconds: float
    held: WeightsHeldIn
    by: str
    engine: NotRequired[str | None]
    model: NotRequired[str | None]
    first_token_s: NotRequired[float]


class RuntimeAnswer(TypedDict):
    """The plan as applied, and the placement of its processes."""

    plan: Recorded
    """As the apply of any version wrote it; empty without an apply."""
    certificate: str
    instances: list[dict[str, Any]]
    environment: NotRequired[str | None]
    """What is broken in the engine's environment; null where it is whole."""
    certificate_standing: NotRequired[CertificateStatus | None]
    rests: NotRequired[str | None]
    listening: dict[str, list[str]]
    nodes: NotRequired[list[int]]


class SuiteRunAnswer(TypedDict):
    """The results of checks."""

    checks: list[SuiteRow]


class SuiteRow(TypedDict):
    """A check, as in `verify`."""

    name: str
    status: str
    detail: str
    seconds: float
    expected: NotRequired[str]
    observed: NotRequired[str]


class BenchStartAnswer(TypedDict, total=False):
    """The load that the machine took; an earlier version does not report it."""

    load: dict[str, Any] | None


class BenchAnswer(TypedDict):
    """The measurements."""

    plan: Recorded
    facts: Facts
    load: float
    busy: bool
    memory: dict[str, Any]
    layer: dict[str, Any]
    serve: dict[str, Any]


class ShareKeyAnswer(TypedDict):
    """Whether weights are missing, and the hash of the key for requesting them."""

    needed: bool
    key_sha256: Sha256


class ShareOpenAnswer(TypedDict):
    """The address at which a neighbour shares weights."""

    port: int
    certificate_sha256: str


class PackageManagerAnswer(TypedDict):
    """Who holds the locks of the package manager, and its unfinished packages."""

    holder: dict[str, Any] | None
    unfinished: NotRequired[list[str]]


class ScrapeTargetAnswer(TypedDict):
    """The certificate that a metrics reader trusts, and its key."""

    certificate: str
    server_name: str
    key: str


class PinsAnswer(TypedDict):
    """How a gateway and a host know each other."""

    certificate: str
    key_sha256: str
    page_certificate: NotRequired[str | None]


class ReturnAnswer(Changed):
    """Whether a gateway sends requests to a host again."""

    asked: bool


class BucketAnswer(TypedDict):
    """The findings about a bucket of weights."""

    findings: list[ToldFinding]


class FirewallAnswer(BucketAnswer, Changed):
    """The packet filter after a convergence."""

    added: NotRequired[list[dict[str, Any]]]
    removed: NotRequired[list[dict[str, Any]]]


class UpdateLookAnswer(TypedDict):
    """Updates of the operating system that are to be installed."""

    words: list[str]
    packages: list[UpdatedPackage]
    left: list[dict[str, Any]]
    restart_reasons: list[str]
    restart: bool
    serves: bool


class UpdatedPackage(TypedDict, total=False):
    """A package that waits."""

    name: Required[str]
    kind: Required[str]
    installed: str
    candidate: str
    held: bool


class UpdateAnswer(TypedDict, total=False):
    """A step of an update."""

    changed: bool
    seconds: float
    left: int
    """Requests that had not ended."""
    installed: list[dict[str, str]]
    restart_reasons: list[str]
    stale_units: list[str]


class DriverAnswer(TypedDict, total=False):
    """A step of the driver's installation."""

    changed: bool
    path: str
    installs: list[str]
    removes: list[str]
    kept: int
    not_kept: list[str]
    done: list[str]
    gpus: int
    version: str
    why: str


class ArchiveAnswer(TypedDict, total=False):
    """An archive that was made, or the folder for one."""

    path: Required[str]
    sha256: Sha256
    bytes: Bytes


class DestroyAnswer(TypedDict):
    """What was restored to its state before the first apply."""

    ok: bool
    changed: bool
    removed: list[str]
    restored: list[str]
    kept: list[str]
    detail: NotRequired[str]
    fix: NotRequired[str]


class NcclTransport(TypedDict):
    """The network that NCCL took: IB, Socket or a plugin's name, and its cards.

    `direct`: cards read the GPUs' memory themselves. `reason`: why it took no card, if it says so.
    """

    network: str
    devices: list[str]
    direct: bool
    reason: Literal["no library", "no device"] | None


class NetworkProofAnswer(TypedDict, total=False):
    """The speed of the network between the hosts of a group."""

    rank: Required[Count]
    link: Required[Any]
    found: Any
    said: str


class NcclProofAnswer(TypedDict):
    """Whether the all-reduce over all GPUs had the right sum."""

    proven: bool
    said: str


class NcclPluginsAnswer(Changed):
    """Files that were moved to the quarantine."""

    moved: list[str]


class DriftAnswer(TypedDict):
    """The differences from what was applied."""

    ok: bool
    complete: bool
    provisioned: bool
    detail: str
    looked_at: str | None
    applied: DriftApplied | None
    weights_read: bool
    weights_read_from: NotRequired[dict[str, str]]
    drift: list[ToldDifference]
    unseen: list[ToldUnseen]
    plan: NotRequired[Recorded | None]


class DriftApplied(TypedDict):
    """The apply that the machine is compared with."""

    entry: int | None
    at: str | None
    by: AppliedBy | None
    inventory: str | None
    kimi_prov: str | None


class ToldDifference(TypedDict):
    """A difference as a machine reports it."""

    id: str
    subject: str
    expected: str | None
    observed: str | None
    since: str | None
    since_from: str | None
    by: str | None
    fix: str


class ToldUnseen(TypedDict):
    """A part that could not be read."""

    what: str
    why: str
    fix: str | None


class NowAnswer(TypedDict, total=False):
    """The state that changes from second to second."""

    ok: Required[bool]
    provisioned: Required[bool]
    detail: Required[str]
    memory: HostMemory
    watchdog: WatchdogStatus | None
    now: NowStatus
