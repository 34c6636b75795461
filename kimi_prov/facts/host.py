"""A machine's facts as the planner sees them: typed, and without what changes by itself."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kimi_prov.catalog.versions import parse_version
from kimi_prov.contract import paths
from kimi_prov.contract.cpu_lists import parse_list
from kimi_prov.contract.gpu_rows import get_gpu_memory, list_gpu_names
from kimi_prov.contract.node_kinds import list_own_nodes
from kimi_prov.facts.gpu_names import split_shared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.catalog.hardware import Cpu, Gpu
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.facts.gpus import GpuFacts, NvidiaFacts
    from kimi_prov.contract.documents.facts.machine import (
        ChoiceFacts,
        CpuFacts,
        FilesystemFacts,
        HostFacts,
        MemoryBandwidth,
        MemoryFacts,
        NodeFacts,
        PythonFacts,
        SysctlFacts,
        TunableFacts,
    )
    from kimi_prov.contract.documents.facts.network import (
        FirewallFacts,
        InterfaceFacts,
        NetworkFacts,
        RdmaFacts,
    )
    from kimi_prov.contract.documents.plan.service import FirewallManager

_NO_NVIDIA: NvidiaFacts = {
    "pci_devices": None,
    "driver_loaded": None,
    "driver_installed": None,
    "open_module": None,
}
# Total memory differs by some MiB between two boots of a machine; a plan must not.
_MEMORY_STEP = 1 << 28
_GIB = 1 << 30
# Nodes that show less than this share of the memory belong to a machine that grows.
_SHOWN = 0.8
Address: TypeAlias = "ipaddress.IPv4Interface | ipaddress.IPv6Interface"


@dataclass(frozen=True)
class Node:
    """A NUMA node: its CPUs, one thread of each of its cores, and bytes of memory."""

    id: int
    cpus: tuple[int, ...]
    primary: tuple[int, ...]
    memory_bytes: int


@dataclass(frozen=True)
class Python:
    """An interpreter; `version` such as "3.11"."""

    path: str
    version: str


@dataclass(frozen=True)
class System:
    """The operating system, as /etc/os-release has it; `kernel` as `uname -r` prints it.

    `container`: what kind of container the machine is. `systemd`: whether it runs.
    """

    id: str | None
    version: str | None
    title: str | None
    kernel: str | None
    arch: str | None
    glibc: str | None
    hostname: str | None
    container: str | None
    systemd: bool | None


@dataclass(frozen=True)
class Tunable:
    """A kernel setting's present value; `choices`: its possible values, if they are listed."""

    value: str | None
    writable: bool
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tunables:
    """Kernel settings that the machine has; `nofile_max`: open files that systemd may grant."""

    sysctl: Mapping[str, Tunable]
    thp: Tunable | None
    governor: Tunable | None
    nofile_max: int | None


@dataclass(frozen=True)
class Listener:
    """A port in use, and the program and systemd unit that hold it."""

    port: int
    process: str | None
    unit: str | None


@dataclass(frozen=True)
class Interface:
    """A network interface; `speed` in bits a second, None if no card reports one.

    `state` is the kernel's word: up, down, unknown and others. `addresses` with their prefix.
    """

    name: str
    state: str | None
    speed: int | None
    mtu: int | None
    addresses: tuple[Address, ...]
    numa_node: int | None
    driver: str | None

    @property
    def down(self) -> bool:
        """Whether the kernel reports the interface as down; a tunnel has no state."""
        return self.state in ("down", "lowerlayerdown", "notpresent", "dormant")


@dataclass(frozen=True)
class Rdma:
    """A port of an RDMA device; `speed` in bits a second.

    `gid_index` and `gid_type` are of RoCE. `paths`: of GPUs by their index, in the words of
    `nvidia-smi topo`: PIX, PXB, PHB, NODE, SYS.
    """

    device: str
    port: int
    link_layer: str | None
    state: str | None
    speed: int | None
    gid_index: int | None
    gid_type: str | None
    netdev: str | None
    numa_node: int | None
    paths: tuple[tuple[int, str], ...]

    @property
    def kind(self) -> Literal["infiniband", "roce"] | None:
        """The protocol of the port."""
        kinds: Mapping[str | None, Literal["infiniband", "roce"]]
        kinds = {"InfiniBand": "infiniband", "Ethernet": "roce"}
        return kinds.get(self.link_layer)

    @property
    def active(self) -> bool:
        """Whether the port carries packets."""
        return self.state == "ACTIVE"

    @property
    def near_gpus(self) -> tuple[int, ...]:
        """Indices of the GPUs that reach the port without their processor."""
        return tuple(index for index, path in self.paths if path in ("PIX", "PXB"))


@dataclass(frozen=True)
class Filesystem:
    """A mounted file system, our directories on it, and its free bytes.

    `linked`: those of these directories that are behind a link, and its target.
    """

    mount: str
    holds: tuple[str, ...]
    free_bytes: int | None
    linked: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Bandwidth:
    """Bandwidth of memory, in bytes per second; 0 is unknown."""

    measured: float
    theoretical: float


@dataclass(frozen=True)
class Measured:
    """Rates per second that `probe --measure` found; 0: not measured. Memory is in `Bandwidth`.

    For a GPU: bytes of its memory, read and written; bytes copied to it while all others copy too;
    operations in bf16. The value is that of the slowest GPU, because all work in step; 0 if one was
    not measured. `disk_bytes`: of the disk with the weights.
    """

    gpu_bytes: float = 0.0
    gpu_copy: float = 0.0
    bf16_flops: float = 0.0
    disk_bytes: float = 0.0


@dataclass(frozen=True)
class Host:
    """The inputs of the planner's decisions. None is unknown.

    `facts` is the whole document: rules report rows of it. `python_path` and `python_version`: the
    system's own. `quoted`: a spec sheet describes the machine, which does not exist yet.
    `gpu_nodes`: the NUMA node of each GPU. `disk_rates`: sequential reading of each disk, in bytes
    per second. `node_bytes`: the sum that the NUMA nodes report. `models`: existing directories of
    weights, and their bytes. `shared_gpus` have no memory of their own. `engine_envs`: installed
    engines, `web_envs` web UIs. `interfaces`, `rdma` are empty if not probed (`network_known`).
    """

    facts: Facts
    system: System
    tunables: Tunables
    listeners: tuple[Listener, ...]
    interfaces: tuple[Interface, ...]
    rdma: tuple[Rdma, ...]
    firewall_manager: FirewallManager
    filesystems: tuple[Filesystem, ...]
    models: Mapping[str, int]
    engine_envs: frozenset[str]
    web_envs: frozenset[str]
    quoted: bool
    python_path: str | None
    python_version: str | None
    cpu_model: str | None
    cores: int
    bandwidth: Bandwidth
    channels_used: int | None
    channels_total: int | None
    disk_rates: tuple[float, ...]
    node_bytes: int
    gpu_nodes: tuple[int | None, ...]
    memory_bytes: int
    nodes: tuple[Node, ...]
    cpus: tuple[int, ...]
    primary: tuple[int, ...]
    pythons: tuple[Python, ...]
    isa: frozenset[str] | None
    kernel: tuple[int, int]
    virtual: bool
    gpu_bytes: tuple[int, ...]
    # Of each GPU the catalogue's row and CUDA compute capability; None if unknown.
    cards: tuple[Gpu | None, ...] = ()
    capabilities: tuple[str | None, ...] = ()
    shared_gpus: tuple[str, ...] = ()
    processor: Cpu | None = None
    measured: Measured = Measured()

    @property
    def swap_bytes(self) -> int:
        """Bytes of swap; unknown counts as none."""
        return self.facts["memory"].get("swap_total_bytes") or 0

    @property
    def network_known(self) -> bool:
        """Whether interfaces and RDMA devices were probed; a spec sheet has none."""
        rows = self.facts["network"]
        return rows.get("interfaces") is not None and rows.get("rdma") is not None

    @property
    def sockets(self) -> int:
        """Processors in the machine; unknown counts as one."""
        return int(self.facts["cpu"].get("sockets") or 1)

    @property
    def described(self) -> bool:
        """Whether a sheet or a recording describes it, where what is missing may be there."""
        origin = self.facts.get("origin")
        return origin is not None and origin["kind"] in ("spec", "recording")

    @property
    def arm(self) -> bool:
        """Whether its processors are ARM's: advice about AVX and AMX is not for them."""
        return self.system.arch in ("aarch64", "arm64")

    @property
    def capability(self) -> str | None:
        """CUDA compute capability that all its GPUs have, such as "9.0"."""
        return min((one for one in self.capabilities if one), key=parse_version, default=None)

    @property
    def gpu(self) -> Gpu | None:
        """The catalogue's row of its GPUs; of different ones the slowest, as all wait for it."""
        known = (card for card in self.cards if card is not None)
        return min(known, key=lambda card: card.bandwidth_gb_s, default=None)

    @property
    def nvidia(self) -> NvidiaFacts:
        """The probe's facts of NVIDIA's driver; empty where it found no card."""
        return self.facts.get("nvidia") or _NO_NVIDIA

    @property
    def amd(self) -> bool:
        """Whether its GPUs are AMD's."""
        return any(g.get("vendor") == "amd" for g in self.facts["gpus"])

    @property
    def reserve_bytes(self) -> int:
        """Memory left to the system: 1 GiB, on large machines 2 % of all."""
        return max(_GIB, self.memory_bytes // 50)


def read_host(facts: Facts, catalogue: Catalogue | None = None) -> Host:
    """Read a valid facts document; the catalogue fills in what a spec sheet leaves out."""
    cpu, rows = facts["cpu"], list_own_nodes(facts["numa"]["nodes"])
    cpus = tuple(parse_list(cpu.get("online"))) or tuple(range(cpu.get("threads") or 0))
    primary = tuple(parse_list(cpu.get("primary"))) or cpus[: cpu.get("cores") or len(cpus)]
    virtual = bool(facts["host"].get("virtualization") or facts["host"].get("container"))
    memory = _read_memory(facts["memory"])
    processor = _find_processor(cpu, catalogue)
    isa = cpu.get("isa")
    if isa is None and processor is not None:
        isa = list(processor.isa)
    gpus, shared = split_shared(facts, catalogue)
    cards, gpu_bytes = _read_gpus(gpus, catalogue)
    kimi, origin = facts["kimi"], facts.get("origin")
    return Host(
        facts=facts,
        system=_read_system(facts["host"]),
        tunables=_read_tunables(facts["tunables"]),
        listeners=_read_listeners(facts["network"]),
        interfaces=tuple(map(_read_interface, facts["network"].get("interfaces") or ())),
        rdma=tuple(map(_read_rdma, facts["network"].get("rdma") or ())),
        firewall_manager=_find_firewall_manager(facts["firewall"]),
        filesystems=tuple(map(_read_filesystem, facts["filesystems"])),
        models={row["dir"]: row["disk_bytes"] for row in kimi.get("models") or []},
        engine_envs=frozenset(kimi.get("engine_envs") or ()),
        web_envs=frozenset(kimi.get("web_envs") or ()),
        quoted=origin is not None and origin["kind"] == "spec",
        python_path=facts["python"].get("path"),
        python_version=facts["python"].get("version"),
        cpu_model=cpu.get("model"),
        cores=len(primary) or int(cpu.get("cores") or 0),
        bandwidth=_read_bandwidth(facts["memory"].get("bandwidth_bytes_per_s") or {}),
        channels_used=facts["memory"].get("channels_populated"),
        channels_total=facts["memory"].get("channels_total"),
        disk_rates=tuple(
            rate
            for row in facts.get("disks") or ()
            if (rate := _read_positive(row.get("read_bytes_per_s")))
        ),
        node_bytes=sum(int(row.get("memory_total_bytes") or 0) for row in rows),
        gpu_nodes=tuple(row.get("numa_node") for row in gpus),
        shared_gpus=shared,
        memory_bytes=memory,
        nodes=_read_nodes(rows, cpus, primary, memory, virtual=virtual),
        cpus=cpus,
        primary=primary,
        pythons=_read_pythons(facts["python"]),
        isa=frozenset(isa) if isa is not None else None,
        kernel=_parse_kernel(facts["host"].get("kernel")),
        virtual=virtual,
        gpu_bytes=gpu_bytes,
        cards=cards,
        capabilities=tuple(
            row.get("compute_capability") or (card.compute_capability if card else None)
            for row, card in zip(gpus, cards, strict=True)
        ),
        processor=processor,
        measured=_read_measured(facts),
    )


def _read_measured(facts: Facts) -> Measured:
    gpus = [row.get("measured") or {} for row in facts["gpus"]]
    together = _find_slowest(gpus, "copy_together_bytes_per_s")
    return Measured(
        gpu_bytes=_find_slowest(gpus, "bandwidth_bytes_per_s"),
        gpu_copy=together or _find_slowest(gpus, "copy_bytes_per_s"),
        bf16_flops=_find_slowest(gpus, "bf16_flops_per_s"),
        disk_bytes=_find_disk_speed(facts),
    )


def _find_disk_speed(facts: Facts) -> float:
    """Return bytes a second of the disk with the weights, if it was measured."""
    measured = facts.get("measured") or {}
    disk = {} if measured.get("busy") else measured.get("disk") or {}
    # With several disks, a measured file of the system is perhaps not on the disk of the weights.
    of_weights = str(disk.get("path") or "").startswith(("/dev/", paths.MODELS))
    alone = len(facts.get("disks") or ()) == 1
    return _read_positive(disk.get("bytes_per_s")) if of_weights or alone else 0.0


def _find_slowest(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    return min((_read_positive(row.get(key)) for row in rows), default=0.0)


def _read_system(host: HostFacts) -> System:
    release = host["os"]
    return System(
        id=release.get("id"),
        version=release.get("version_id"),
        title=release.get("pretty"),
        kernel=host.get("kernel"),
        arch=host.get("arch"),
        glibc=host.get("glibc"),
        hostname=host.get("hostname"),
        container=host.get("container"),
        systemd=host.get("systemd_running"),
    )


def _read_tunables(rows: TunableFacts) -> Tunables:
    sysctl = {name: _read_tunable(row) for name, row in (rows.get("sysctl") or {}).items()}
    return Tunables(
        sysctl={name: row for name, row in sysctl.items() if row is not None},
        thp=_read_choice(rows.get("thp")),
        governor=_read_choice(rows.get("governor")),
        nofile_max=rows.get("nofile_max"),
    )


def _read_tunable(
    row: SysctlFacts | ChoiceFacts | None, choices: Sequence[str] = ()
) -> Tunable | None:
    return row and Tunable(row.get("value"), bool(row.get("writable")), tuple(choices))


def _read_choice(row: ChoiceFacts | None) -> Tunable | None:
    return _read_tunable(row, (row and row.get("choices")) or ())


def _read_listeners(network: NetworkFacts) -> tuple[Listener, ...]:
    return tuple(
        Listener(row["port"], row.get("process"), row.get("unit"))
        for row in network.get("listening") or []
    )


def _read_filesystem(row: FilesystemFacts) -> Filesystem:
    return Filesystem(
        row["mount"],
        tuple(row.get("holds") or ()),
        row.get("free_bytes"),
        tuple(sorted((row.get("linked") or {}).items())),
    )


def _read_interface(row: InterfaceFacts) -> Interface:
    addresses = [_parse_address(text) for text in row.get("addresses") or ()]
    return Interface(
        name=row["name"],
        state=row.get("state"),
        speed=row.get("speed_bits_per_s"),
        mtu=row.get("mtu"),
        addresses=tuple(address for address in addresses if address is not None),
        numa_node=row.get("numa_node"),
        driver=row.get("driver"),
    )


def _parse_address(text: str) -> Address | None:
    try:
        return ipaddress.ip_interface(text)
    except ValueError:
        return None


def _read_rdma(row: RdmaFacts) -> Rdma:
    return Rdma(
        device=row["device"],
        port=row["port"],
        link_layer=row.get("link_layer"),
        state=row.get("state"),
        speed=row.get("speed_bits_per_s"),
        gid_index=row.get("gid_index"),
        gid_type=row.get("gid_type"),
        netdev=row.get("netdev"),
        numa_node=row.get("numa_node"),
        paths=tuple((gpu["index"], gpu["path"]) for gpu in row.get("gpus") or ()),
    )


def _find_firewall_manager(rows: FirewallFacts) -> FirewallManager:
    """Return the manager of the firewall: ufw, firewalld, or nftables itself."""
    if rows.get("ufw") == "active":
        return "ufw"
    return "firewalld" if rows.get("firewalld") == "active" else "nftables"


def _read_bandwidth(rows: MemoryBandwidth) -> Bandwidth:
    return Bandwidth(_read_positive(rows.get("measured")), _read_positive(rows.get("theoretical")))


def _read_positive(value: object) -> float:
    """Return a positive number, also from a measurement with a value per node; else 0."""
    if isinstance(value, dict):
        value = value.get("all") or value.get("total")
    positive = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    return float(value) if positive else 0.0  # type: ignore[arg-type]


def _find_processor(cpu: CpuFacts, catalogue: Catalogue | None) -> Cpu | None:
    names = [cpu.get("catalogue_name"), cpu.get("model")]
    rows = [catalogue.find_cpu(str(name)) for name in names if name] if catalogue else []
    return next((row for row in rows if row is not None), None)


def _read_gpus(
    rows: Sequence[GpuFacts], catalogue: Catalogue | None
) -> tuple[tuple[Gpu | None, ...], tuple[int, ...]]:
    """Return the catalogue's row of every GPU, and its memory in bytes."""
    cards = []
    sizes = []
    for row in rows:
        size = get_gpu_memory(row) or 0
        names = list_gpu_names(row)
        known = [catalogue.find_gpu(name, size or None) for name in names] if catalogue else []
        known_gpu = next((gpu for gpu in known if gpu is not None), None)
        cards.append(known_gpu)
        sizes.append(size or (known_gpu.memory_bytes if known_gpu else 0))
    return tuple(cards), tuple(sizes)


def _read_memory(memory: MemoryFacts) -> int:
    total = int(memory.get("total_bytes") or 0)
    limit = memory.get("cgroup_limit_bytes")
    usable = min(total, limit) if limit else total
    return int(usable // _MEMORY_STEP * _MEMORY_STEP)


def _read_nodes(
    rows: Sequence[NodeFacts],
    every: tuple[int, ...],
    primary: tuple[int, ...],
    memory: int,
    *,
    virtual: bool,
) -> tuple[Node, ...]:
    """Return the nodes with memory and CPUs that we may use.

    A virtual machine gets its memory when it first uses it and shows small nodes until then: a
    node counts as at least its share of the whole, but none without memory where the nodes have
    all of it. `every`: all CPUs, `primary`: one of each core; a spec sheet does not number them, so
    they are spread evenly.
    """
    share = memory // max(1, len(rows))
    shown = sum(row.get("memory_total_bytes") or 0 for row in rows)
    nodes = []
    for index, row in enumerate(rows):
        cpus = tuple(parse_list(row.get("cpus")))
        if row.get("cpus") is None:
            cpus = _select_cpus(every, index, len(rows))
            primary_here = _select_cpus(primary, index, len(rows))
        else:
            own_cpus = set(cpus)
            primary_here = tuple(cpu for cpu in primary if cpu in own_cpus)
        known = row.get("memory_total_bytes")
        size = known or 0
        if known is None or (virtual and (known or shown < memory * _SHOWN)):
            size = max(size, share)
        if cpus and size:
            own = primary_here or cpus
            nodes.append(Node(int(row["id"]), cpus, own, int(size // _MEMORY_STEP * _MEMORY_STEP)))
    return tuple(sorted(nodes, key=lambda node: node.id))


def _select_cpus(cpus: tuple[int, ...], index: int, parts: int) -> tuple[int, ...]:
    return cpus[len(cpus) * index // parts : len(cpus) * (index + 1) // parts]


def _read_pythons(python: PythonFacts) -> tuple[Python, ...]:
    """Return interpreters, the system's own first: others may vanish with their environment."""
    pythons = [
        Python(str(row["path"]), str(row["version"]))
        for row in python.get("others") or []
        if row.get("path") and row.get("version")
    ]
    match = re.match(r"\d+\.\d+", python.get("version") or "")
    path = python.get("path")
    if match and path:
        own = Python(str(path), match.group())
        pythons.insert(0 if str(path).startswith("/usr/bin/") else len(pythons), own)
    return tuple(pythons)


def _parse_kernel(text: str | None) -> tuple[int, int]:
    match = re.match(r"([0-9]{1,9})\.([0-9]{1,9})", text or "")
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)
