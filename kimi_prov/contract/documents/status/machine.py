"""Status: a host that serves."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.findings import Finding, ToldFinding
from kimi_prov.contract.documents.form import Count, NotRequired, Required, Timestamp
from kimi_prov.contract.documents.status.activity import NowStatus
from kimi_prov.contract.documents.status.host import (
    AppliedStatus,
    CertificateStatus,
    DriftStatus,
    UpdatesStatus,
    WebUiStatus,
)
from kimi_prov.contract.documents.status.lifecycle import RestStatus
from kimi_prov.contract.documents.status.monitor import MetricsStatus

HostState = Literal["serving", "starting", "stopping", "stopped", "asleep", "failed"]


class MachineState(TypedDict, total=False):
    """A host that serves, as it reports itself."""

    ok: Required[bool]
    provisioned: Required[Literal[True]]
    detail: Required[str]
    state: HostState
    """Stopped and asleep are on purpose, and ok; an earlier version does not report them."""
    rest: RestStatus
    units: Required[dict[str, UnitStatus]]
    applied: AppliedStatus | None
    group: GroupStatus | None
    versions: Required[VersionsStatus]
    model: Required[ModelStatus]
    disks: list[DiskStatus]
    """File systems with files of kimi-prov, by the first of its folders there."""
    ram_disk: Required[RamDiskStatus]
    prepared_weights: PreparedStatus | None
    web: WebUiStatus | None
    port: Required[PortStatus | None]
    memory: Required[MemoryStatus]
    placement: Required[list[PlacementStatus]]
    updates: UpdatesStatus | None
    updates_error: str | None
    """Why the waiting updates are unknown: apt failed, or did not answer in 30 s."""
    uptime_seconds: Required[float]
    watchdog: WatchdogStatus | None
    now: NowStatus
    drift: DriftStatus | None
    metrics: MetricsStatus | None


class MachineStatus(MachineState):
    """A host that serves."""

    stand_ins: list[str]
    findings: NotRequired[list[Finding]]
    """Hardware that begins to fail while it serves. An earlier version does not report it."""


class MachineAnswer(MachineState, total=False):
    """A host that serves, and what makes its answers meaningless."""

    findings: list[ToldFinding]

    stand_in: str | None
    random_weights: bool
    trained_on: str | None


class UnitStatus(TypedDict):
    """A unit of systemd."""

    state: str
    sub_state: str
    enabled: bool
    restarts: int
    uptime_seconds: float | None


GroupPhase = Literal["waiting", "starting", "serving", "stopped"]


class GroupStatus(TypedDict):
    """The hosts that serve the model together with this one; null where it serves alone."""

    name: str
    rank: Count
    """0 is the head, which has the port."""
    head: str
    members: list[MemberAddress]
    unit: str
    """The unit of this host's part of the model."""
    phase: GroupPhase
    """waiting: for other hosts; starting: the engine loads."""
    said: str
    """Last line of the unit about the group."""
    failed_rounds: Count
    """Starts in a row that failed although every host was connected."""


class MemberAddress(TypedDict):
    """A host of the group."""

    host: str
    address: str | None


class VersionsStatus(TypedDict, total=False):
    """What is installed."""

    engine: Required[str | None]
    engine_variant: Required[str | None]
    engine_version: Required[str | None]
    engine_directory: Required[str | None]
    engine_locks: list[str] | None
    """The lock files from which the engine's environment was made."""
    engine_python: str | None
    """The interpreter of the engine's environment."""
    engine_interpreter: InterpreterStatus | None
    driver: str | None
    """Version of NVIDIA's driver that is loaded."""
    driver_failed: str | None
    """Which version of it was tried here in vain, and why; null for none. An earlier version does
    not report it."""
    proxy: Required[str | None]


class InterpreterStatus(TypedDict):
    """The bundled build of CPython; null where it is the machine's own."""

    version: str
    build: str
    sha256: str
    dir: str


class ModelStatus(TypedDict):
    """The model that is served."""

    name: str
    revision: str
    served_names: list[str]
    directory: str
    bytes: int
    context: int
    weights_verified: bool


class DiskStatus(TypedDict):
    """A file system."""

    path: str
    size_bytes: int
    free_bytes: int
    """Free bytes for users other than root."""


class RamDiskStatus(TypedDict):
    """The RAM disk."""

    planned: bool
    reason: str
    mounted: MountedRamDisk | None


class MountedRamDisk(TypedDict):
    """As it is mounted."""

    size_bytes: int
    used_bytes: int


class PreparedStatus(TypedDict):
    """What the engines keep of their weights for their next start."""

    planned: bool
    reason: str
    files: Count
    """Of the present plan, one a rank."""
    put_aside: Count
    """Damaged files, which `clean` removes."""
    older: NotRequired[Count]
    """Files of older keys, which no start copies any more and `clean` removes."""
    bytes: Count
    """On the disk, of all."""


class PortStatus(TypedDict):
    """null on a host of a group that is not its head."""

    number: int
    listening: list[str]
    allowed_networks: list[str]
    guarded: bool
    certificate_sha256: str
    certificate: NotRequired[CertificateStatus]
    keys: list[str]
    key_not_shown_yet: bool
    engines: list[EngineBehind]


class EngineBehind(TypedDict):
    """An engine as the proxy sees it."""

    name: str
    status: str
    requests: int


class HostMemory(TypedDict):
    """Memory of the host."""

    host_total_bytes: int
    host_available_bytes: int


class MemoryStatus(HostMemory):
    """Memory of the host, and of its engines."""

    engines: list[EngineMemory]


class EngineMemory(TypedDict):
    """Memory of an engine."""

    index: int
    cgroup_bytes: int | None
    resident_bytes: int


class PlacementStatus(TypedDict):
    """Where an engine runs, and where its memory lies."""

    index: int
    cpus: list[str]
    policies: list[str]
    bytes_by_node: dict[str, int]
    threads: int
    huge_bytes: int | None


class WatchdogStatus(TypedDict):
    """The watchdog, which detects a hanging engine; null for a machine of an earlier version."""

    enabled: bool
    state: str
    """systemd's state of it."""
    reason: str
    """Why its limits are what they are, or why there is none."""
    bundles: int
    """Folders in /var/lib/kimi/hangs."""
    last_hang: LastHang | None
    memory_ended: NotRequired[list[MemoryEnd]]
    """Engines that were ended by their memory limit, and when that was last."""


class MemoryEnd(TypedDict):
    """An engine that systemd ended because its unit reached `MemoryMax`."""

    unit: str
    at: Timestamp


class LastHang(TypedDict):
    """The last engine that hung."""

    unit: str
    at: Timestamp
    why: str
    still_s: float
    """Seconds without a step until it was reported."""
    done: Literal["restarted", "left alone", "left to the group"]
    served_again_s: float | None
    """Seconds from its last step until it made progress; null while it has not."""
    bundle: str | None
