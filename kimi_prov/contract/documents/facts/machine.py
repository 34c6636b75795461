"""Facts: the system, processors, memory, disks, settings and packages."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import CpuList, NotRequired, Quantity, Required, Whole


class HostFacts(TypedDict, total=False):
    """The system and its kernel."""

    hostname: str | None
    os: Required[OsFacts]
    kernel: str | None
    arch: str | None
    glibc: str | None
    virtualization: str | None
    container: str | None
    systemd_version: Whole | None
    systemd_running: bool | None
    machine_id_hash: str | None
    root: bool | None
    secure_boot: bool | None


class OsFacts(TypedDict):
    """The distribution."""

    id: str | None
    version_id: str | None
    codename: str | None
    pretty: str | None


class PythonFacts(TypedDict, total=False):
    """The interpreters on the machine."""

    path: str | None
    version: Required[str | None]
    has_venv: bool | None
    others: list[OtherPython]


class OtherPython(TypedDict):
    """Another interpreter."""

    path: str
    version: str


class CpuFacts(TypedDict, total=False):
    """The processors."""

    model: Required[str | None]
    """As the kernel reports it; a virtual machine's may have no number: then `microarchitecture`
    names the design."""
    vendor: str | None
    family: Whole | None
    model_number: Whole | None
    stepping: Whole | None
    sockets: Whole | None
    cores: Whole | None
    threads: Whole | None
    isa: Required[list[str] | None]
    """The kernel's names of instructions that engines and formats need."""
    online: Required[CpuList | None]
    primary: CpuList | None
    l3_bytes: Whole | None
    frequency_hz: Whole | None
    catalogue_name: str | None
    microarchitecture: str | None
    amx_permission: bool | None
    """Whether the kernel grants the tiles' state; the processor alone does not decide it."""
    smt: bool | None
    governor: str | None
    caches: dict[str, Whole | None] | None
    nodes_per_socket: Whole | None
    snc: Whole | None
    """NUMA nodes of a socket as set in the firmware (Intel); null on virtual machines, whose nodes
    are their hypervisor's choice."""
    nps: Whole | None
    """The same of AMD's processors."""
    tdp_w: Quantity | None


class NumaFacts(TypedDict):
    """The NUMA topology."""

    nodes: list[NodeFacts]
    memory_grows: NotRequired[bool | None]
    """The nodes show far less than the total, as in virtual machines that get memory when they
    touch it."""


NodeKind = Literal["ddr", "hbm", "cxl", "gpu"]


class NodeFacts(TypedDict, total=False):
    """A NUMA node."""

    id: Required[Whole]
    cpus: Required[CpuList | None]
    memory_total_bytes: Whole | None
    memory_free_bytes: Whole | None
    memory_available_bytes: Whole | None
    distances: list[Whole]
    kind: NodeKind | None
    """Whose memory it is: ddr is the processors' own; nodes without processors are hbm (Xeon Max in
    flat mode), gpu (Grace) or cxl (another expander); null: it has none, or nothing says it."""


class OtherMemory(TypedDict, total=False):
    """Bytes on NUMA nodes without processors, by their kind."""

    hbm: Whole
    cxl: Whole
    gpu: Whole


class MemoryFacts(TypedDict, total=False):
    """The memory."""

    total_bytes: Required[Whole | None]
    """Of nodes with processors; the kernel's MemTotal counts the others too."""
    available_bytes: Whole | None
    other_bytes: OtherMemory | None
    swap_total_bytes: Whole | None
    hugepages_total: Whole | None
    hugepage_bytes: Whole | None
    shm_size_bytes: Whole | None
    cgroup_limit_bytes: Whole | None
    hugepages_free: Whole | None
    hugepages_1g: Whole | None
    slots_total: Whole | None
    channels_populated: Whole | None
    """By the names of the slots; null where the board's names do not say."""
    channels_total: Whole | None
    dimms: list[DimmFacts] | None
    bandwidth_bytes_per_s: MemoryBandwidth | None


class DimmFacts(TypedDict, total=False):
    """A module of memory."""

    size_bytes: Whole | None
    speed_mt_s: Quantity | None
    configured_mt_s: Quantity | None
    locator: str | None
    bank: str | None
    type: str | None


class MemoryBandwidth(TypedDict):
    """The memory's bandwidth."""

    measured: NotRequired[Quantity | None]
    """By `--measure` on a quiet machine."""
    theoretical: NotRequired[Quantity | None]
    """Populated channels x configured speed x 8 bytes."""


CgroupHierarchy = Literal["unified", "hybrid", "legacy"]


class CgroupFacts(TypedDict, total=False):
    """The tightest limits of our own control group and those above it; null is no limit."""

    memory_bytes: Whole | None
    cpus: Quantity | None
    hierarchy: CgroupHierarchy | None
    """unified is version 2."""


class TunableFacts(TypedDict, total=False):
    """Settings of the kernel that engines care about."""

    sysctl: dict[str, SysctlFacts]
    thp: ChoiceFacts | None
    governor: ChoiceFacts | None
    nofile_max: Whole | None


class SysctlFacts(TypedDict):
    """A setting, and whether it can be written."""

    value: str | None
    writable: bool | None


class ChoiceFacts(TypedDict):
    """A setting with fixed values."""

    value: str | None
    choices: list[str]
    writable: bool | None


class FilesystemFacts(TypedDict, total=False):
    """A file system that has, or would have, files of kimi-prov."""

    mount: Required[str]
    device: str | None
    fstype: str | None
    options: list[str]
    """Those of nodev, noexec, nosuid and ro that it is mounted with."""
    linked: dict[str, str]
    """The paths of `holds` that are links, and their targets."""
    writable: bool | None
    """Whether root may write there."""
    holds: list[str]
    total_bytes: Whole | None
    free_bytes: Whole | None


class DiskFacts(TypedDict, total=False):
    """A disk."""

    name: str | None
    kind: str | None
    size_bytes: Whole | None
    model: str | None
    read_bytes_per_s: Quantity | None


class PackageFacts(TypedDict, total=False):
    """The distribution's packages."""

    installed: dict[str, str] | None
    held: list[str] | None
    unattended_upgrades: bool | None
    needrestart: bool | None
    busy: PackageLock | None
    """Who holds a lock of apt or dpkg at this moment; only root sees it."""
    unfinished: list[str] | None
    """Packages that dpkg began and did not finish, or is installing now."""


class PackageLock(TypedDict, total=False):
    """Who holds a lock of the package manager."""

    lock: Required[str]
    pid: Whole
    process: str | None
    unit: str | None


SelinuxMode = Literal["enforcing", "permissive"]


class SecurityFacts(TypedDict, total=False):
    """The kernel's security modules."""

    modules: list[str] | None
    selinux: SelinuxMode | None
    apparmor_enforced: list[str] | None
    """Enforced profiles of haproxy and nft."""
