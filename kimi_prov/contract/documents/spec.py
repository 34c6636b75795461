"""`kimi-prov/spec/v1`: a machine as a quote describes it."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kimi_prov.contract.documents.form import NotRequired, Required, Rule

InstructionSet = Annotated[str, Rule(pattern="^[a-z0-9_]+$", max_length=100)]


class Spec(TypedDict, total=False):
    """A machine as a quote describes it, or one of several equal ones that serve one model.

    The CPU and the cards are looked up in the catalogue; values given here take precedence. Shorter
    forms (2x EPYC 9654, 3.84 TB, purchase_eur) are converted into this form first.
    """

    schema: Required[Literal["kimi-prov/spec/v1"]]
    name: Required[Annotated[str, Rule(min_length=1, max_length=200)]]
    note: Annotated[str, Rule(max_length=4000)] | None
    """What was assumed, and where the figures come from."""
    cpu: Required[SpecCpu]
    memory: Required[Annotated[SpecMemory, Rule(any_of_keys=(("dimms", "dimm_gb"), ("total_gb",)))]]
    gpus: SpecGpus | Annotated[list[SpecGpus], Rule(max_items=16)] | None
    disks: Annotated[list[SpecDisk], Rule(max_items=64)] | None
    nics: Annotated[list[SpecNic], Rule(max_items=64)] | None
    hosts: Annotated[int, Rule(minimum=1, maximum=64)]
    """Equal machines that serve one model together; all else in the sheet, the price too, is of one
    of them. 1 where it is left out."""
    link: SpecLink | None
    software: SpecSoftware | None
    price: SpecPrice | None


class SpecCpu(TypedDict, total=False):
    """The processors."""

    model: Required[Annotated[str, Rule(min_length=1, max_length=200)]]
    sockets: Annotated[int, Rule(minimum=1, maximum=16)]
    """1 where it is left out."""
    numa_nodes: Annotated[int, Rule(minimum=1, maximum=64)]
    """Of the whole machine; as delivered where it is left out."""
    cores: Annotated[int, Rule(minimum=1, maximum=1024)]
    """Of one socket."""
    threads_per_core: Annotated[int, Rule(minimum=1, maximum=8)]
    isa: Annotated[list[InstructionSet], Rule(max_items=100)]
    memory_channels: Annotated[int, Rule(minimum=1, maximum=64)]
    """Of one socket."""
    memory_mt_s: Annotated[int, Rule(minimum=100, maximum=100000)]
    """The fastest memory it takes."""
    bandwidth_gb_s: Annotated[float, Rule(minimum=1, maximum=100000)]
    """Of one socket, all channels populated."""
    tdp_w: Annotated[float, Rule(minimum=1, maximum=10000)]


class SpecMemory(TypedDict, total=False):
    """The memory."""

    dimms: Annotated[int, Rule(minimum=1, maximum=512)]
    """Of the whole machine."""
    dimm_gb: Annotated[int, Rule(minimum=1, maximum=4096)]
    """As sold: 64 means 64 GiB."""
    total_gb: Annotated[int, Rule(minimum=1, maximum=1048576)]
    """In GiB, where the modules are not known."""
    type: Literal["DDR3", "DDR4", "DDR5", "LPDDR4", "LPDDR4X", "LPDDR5", "LPDDR5X"]
    """Held against what the processor takes."""
    speed_mt_s: Annotated[int, Rule(minimum=100, maximum=100000)]
    configured_mt_s: Annotated[int, Rule(minimum=100, maximum=100000)]
    """The speed it will run at."""
    measured_gb_s: Annotated[float, Rule(minimum=1, maximum=100000)]
    """Streaming read of the whole machine."""


class SpecGpus(TypedDict, total=False):
    """GPUs of one kind."""

    model: Required[Annotated[str, Rule(min_length=1, max_length=200)]]
    count: Annotated[int, Rule(minimum=1, maximum=64)]
    """1 where it is left out."""
    memory_gb: Annotated[float, Rule(minimum=1, maximum=10000)]
    """Of one, in GiB as its driver shows it."""
    compute_capability: Annotated[
        str, Rule(pattern=r"^([0-9]+\.[0-9]+|gfx[0-9a-f]+)$", max_length=20)
    ]
    nvlink: Literal["full", "pairs", "none"]
    """full: through a switch, or each with each."""
    pcie_gen: Annotated[int, Rule(minimum=1, maximum=8)]
    pcie_width: Literal[1, 2, 4, 8, 16]
    power_limit_w: Annotated[float, Rule(minimum=1, maximum=10000)]
    mig: bool
    ecc: bool


class SpecDisk(TypedDict, total=False):
    """Disks of one kind."""

    kind: Literal["nvme", "ssd", "hdd", "network"]
    size_gb: Required[Annotated[float, Rule(minimum=1, maximum=100000000)]]
    """As sold: 10^9 bytes."""
    count: Annotated[int, Rule(minimum=1, maximum=256)]
    read_gb_s: Annotated[float, Rule(minimum=0.001, maximum=10000)]
    """Of one."""


class SpecNic(TypedDict):
    """Network cards of one kind."""

    speed_gbit_s: Annotated[float, Rule(minimum=0.001, maximum=100000)]
    count: NotRequired[Annotated[int, Rule(minimum=1, maximum=64)]]


class SpecLink(TypedDict):
    """The network between these hosts."""

    kind: Literal["infiniband", "roce", "ethernet"]
    speed_gbit_s: NotRequired[Annotated[float, Rule(minimum=0.001, maximum=100000)]]
    """Of one port."""
    count: NotRequired[Annotated[int, Rule(minimum=1, maximum=64)]]
    """Ports of each host; 1 where it is left out."""


class SpecSoftware(TypedDict, total=False):
    """What is installed."""

    os: Annotated[str, Rule(pattern=r"^[a-z]+-[0-9][0-9.]*$", max_length=100)]
    kernel: Annotated[str, Rule(pattern=r"^[0-9]+\.[0-9]+[^\s]*$", max_length=100)]
    nvidia_driver: Annotated[str, Rule(pattern=r"^[0-9]{3,4}(\.[0-9]+)*$", max_length=100)]
    open_module: bool
    python: Annotated[str, Rule(pattern=r"^3\.[0-9]+(\.[0-9]+)?$", max_length=100)]
    virtualization: Annotated[str, Rule(min_length=1, max_length=100)]
    """kvm, for example: it is a virtual machine."""


class SpecPrice(TypedDict, total=False):
    """The price of the machine."""

    purchase_usd: Annotated[float, Rule(minimum=0, maximum=1000000000)]
    hourly_usd: Annotated[float, Rule(minimum=0, maximum=1000000)]
    purchase: Annotated[float, Rule(minimum=0, maximum=1000000000000)]
    """In another currency, beside currency and usd_per_unit."""
    hourly: Annotated[float, Rule(minimum=0, maximum=1000000000)]
    """In another currency."""
    currency: Annotated[str, Rule(pattern=r"^[A-Z]{3}$")]
    """Of purchase and hourly, by its three letters."""
    usd_per_unit: Annotated[float, Rule(minimum=1e-06, maximum=1000000)]
    """Dollars for one unit of that currency: 1.08."""
