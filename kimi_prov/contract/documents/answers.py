"""What the code on a managed machine answers, where it is no host's part of a document.

`kimi_prov.on_host.__main__.COMMANDS` names the type of each subcommand's answer. Keys that a
machine of an earlier version does not tell are not required.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from kimi_prov.contract.documents.facts import Facts
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
    """A unit that was converged, and by what."""

    did: str


class SettledAnswer(TypedDict):
    """Whether the machine is as it was applied, and what differs first."""

    settled: bool
    differs: str | None


class FollowAnswer(TypedDict):
    """How far a unit is that works by itself."""

    unit: dict[str, str]
    """systemd's properties of it."""
    progress: NotRequired[dict[str, Any] | None]
    journal: NotRequired[list[str]]
    """Its last lines, where it failed."""


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
    """Where the next question goes on."""
    cut: NotRequired[bool]
    """There were more lines."""


class ServeAnswer(Changed):
    """What became of the engines' units."""

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
    """Whether the model gives a token."""

    ok: Literal[True]
    answered: bool
    refusal: str
    """Why not; empty where it does."""
    restarts: dict[str, int]
    """Of each unit."""
    line: NotRequired[str]
    """The engine's last."""


class ProxyAnswer(Changed):
    """What became of the certificate and the keys."""

    certificate: NotRequired[dict[str, Any]]
    keys: PublishedKeys
    converged: NotRequired[bool]
    """Whether the proxy runs what is in place."""


class PublishedKeys(Changed):
    """API keys by their names, and how the proxy took them over."""

    names: list[str]
    created: list[str]
    removed: list[str]
    applied: NotRequired[str]


class WebUiAnswer(Applied):
    """What became of the web UI."""

    changes: list[str]


class AcmeAnswer(Changed):
    """What was ordered by ACME."""

    ordered: str
    """Why; empty where nothing was."""
    warning: str | None


class MonitorAnswer(Changed):
    """What became of Prometheus and Alertmanager."""

    did: list[str]
    unknown: list[str]
    """Hosts that were never reached."""


class MonitorStateAnswer(Changed):
    """What of the monitor is there, before it is installed."""

    missing: NotRequired[list[str]]
    user_missing: NotRequired[bool]


class KeysAnswer(TypedDict, total=False):
    """API keys: that one is made or gone, or where the keys are."""

    key: str | None
    """In clear, once."""
    web_admin: dict[str, str] | None
    uncounted: list[int]
    """Instances whose engine runs since before it could count."""
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
    """What cut runs left."""

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
    """A switch back to a former version."""

    restores: int
    group: SwitchedGroup | None


class SwitchedGroup(TypedDict):
    """The hosts that go to another version together."""

    hosts: list[str]
    digest: str


# `from` is a word of Python.
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
    """What was recorded of an apply, and what is to be said of its switch."""

    told: list[str]


class SwitchEndAnswer(EndedApply, LockAnswer):
    """The same, and the lock, which is released."""


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
    """What a start will take."""

    seconds: float | None
    basis: str


class BegunStart(TypedDict):
    """A start that was asked for."""

    held: WeightsHeldIn
    expected: ExpectedStart


class FillingUnit(TypedDict):
    """A unit that fills memory, and where it tells how far it is."""

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
    """The plan as applied, and where its processes run."""

    plan: Recorded
    """As an apply of whatever version wrote it; empty where none did."""
    certificate: str
    instances: list[dict[str, Any]]
    certificate_standing: NotRequired[CertificateStatus | None]
    rests: NotRequired[str | None]
    listening: dict[str, list[str]]
    nodes: NotRequired[list[int]]


class SuiteRunAnswer(TypedDict):
    """What checks found."""

    checks: list[SuiteRow]


class SuiteRow(TypedDict):
    """A check, as `verify` has it."""

    name: str
    status: str
    detail: str
    seconds: float
    expected: NotRequired[str]
    observed: NotRequired[str]


class BenchStartAnswer(TypedDict, total=False):
    """The load that the machine took; an earlier version says nothing of it."""

    load: dict[str, Any] | None


class BenchAnswer(TypedDict):
    """What was measured."""

    plan: Recorded
    facts: Facts
    load: float
    busy: bool
    memory: dict[str, Any]
    layer: dict[str, Any]
    serve: dict[str, Any]


class ShareKeyAnswer(TypedDict):
    """Whether weights are lacking, and the hash of the key by which they are asked for."""

    needed: bool
    key_sha256: Sha256


class ShareOpenAnswer(TypedDict):
    """Where a neighbour gives weights."""

    port: int
    certificate_sha256: str


class PackageManagerAnswer(TypedDict):
    """Who holds the locks of the package manager, and what it began and did not end."""

    holder: dict[str, Any] | None
    unfinished: NotRequired[list[str]]


class ScrapeTargetAnswer(TypedDict):
    """What reads metrics trusts, and its key."""

    certificate: str
    server_name: str
    key: str


class PinsAnswer(TypedDict):
    """By what a gateway knows a host, and a host a gateway."""

    certificate: str
    key_sha256: str
    page_certificate: NotRequired[str | None]


class ReturnAnswer(Changed):
    """Whether a gateway sends to a host again."""

    asked: bool


class BucketAnswer(TypedDict):
    """What was found of a bucket of weights."""

    findings: list[ToldFinding]


class FirewallAnswer(BucketAnswer, Changed):
    """What became of the packet filter."""

    added: NotRequired[list[dict[str, Any]]]
    removed: NotRequired[list[dict[str, Any]]]


class ToldFinding(TypedDict):
    """A finding as a machine tells it: the control side has the rest of it."""

    id: str
    observed: Any
    required: Any
    fix: str | None


class UpdateLookAnswer(TypedDict):
    """What of the operating system is to be installed."""

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
    """An archive that was made, or where one is put."""

    path: Required[str]
    sha256: Sha256
    bytes: Bytes


class DestroyAnswer(TypedDict):
    """What was put back as it was before the first apply."""

    ok: bool
    changed: bool
    removed: list[str]
    restored: list[str]
    kept: list[str]
    detail: NotRequired[str]
    fix: NotRequired[str]


class NetworkProofAnswer(TypedDict, total=False):
    """How fast the hosts of a group reach each other."""

    rank: Required[Count]
    link: Required[Any]
    found: Any
    said: str


class NcclProofAnswer(TypedDict):
    """Whether all GPUs added up what each of them had."""

    proven: bool
    said: str


class NcclPluginsAnswer(Changed):
    """Files that were set aside."""

    moved: list[str]


class DriftAnswer(TypedDict):
    """What differs from what was applied."""

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
    """A difference as a machine tells it."""

    id: str
    subject: str
    expected: str | None
    observed: str | None
    since: str | None
    since_from: str | None
    by: str | None
    fix: str


class ToldUnseen(TypedDict):
    """What could not be looked at."""

    what: str
    why: str
    fix: str | None


class DiagnoseAnswer(TypedDict):
    """Parts of a bug report; null what could not be gathered."""

    missing: dict[str, str]
    plan: Recorded
    status: dict[str, Any] | None
    units: dict[str, dict[str, str]] | None
    unit_files: str | None
    logs: dict[str, dict[str, Any]] | None
    kernel: dict[str, Any] | None
    metrics: list[dict[str, Any]] | None
    gpus: str | None
    facts: Recorded | None
    configuration: NotRequired[dict[str, str] | None]
    packages: NotRequired[list[str] | None]
    hangs: NotRequired[Any]


class NowAnswer(TypedDict, total=False):
    """What of a machine changes from second to second."""

    ok: Required[bool]
    provisioned: Required[bool]
    detail: Required[str]
    memory: HostMemory
    watchdog: WatchdogStatus | None
    now: NowStatus
