"""Processors and GPUs of the catalogue. Units stand in the names; None is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from kimi_prov.catalog.confidence import Confidence  # noqa: TC001  (read at run time)
from kimi_prov.catalog.currency import Row

Vector = Literal["avx2", "avx512", "amx", "arm"]


@dataclass(frozen=True)
class Cpu(Row):
    """A processor, figures for one socket.

    `bandwidth_gb_s` is theoretical with every channel populated; `measured_bandwidth_gb_s` is from
    a streaming test; `kernel_bandwidth_gb_s` from an expert kernel; `links_gb_s` is the limit of
    the links of few chiplets (51 GB/s each on Zen 2 and 3, 58 on Zen 4).
    `memory_mt_s_max` is for MRDIMM or validated platforms, `memory_mt_s_two` with two modules on a
    channel. `nodes_per_socket`: NUMA nodes as
    delivered, `numa_choices`: the firmware's other settings.
    """

    name: str
    vendor: Literal["GenuineIntel", "AuthenticAMD", "ARM"]
    microarchitecture: str
    cores: int
    max_sockets: int
    isa: tuple[str, ...]
    bandwidth_gb_s: float
    source: str
    confidence: Confidence
    threads_per_core: int = 2
    memory_channels: int | None = None
    memory_mt_s: int | None = None
    memory_mt_s_max: int | None = None
    memory_mt_s_two: int | None = None
    memory_type: str | None = None
    measured_bandwidth_gb_s: float | None = None
    kernel_bandwidth_gb_s: float | None = None
    links_gb_s: float | None = None
    bandwidth_note: str | None = None
    tdp_w: int | None = None
    nodes_per_socket: int = 1
    numa_choices: tuple[int, ...] = (1,)
    kt_methods: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    note: str | None = None

    ABOVE_ZERO: ClassVar[tuple[str, ...]] = (
        "cores",
        "max_sockets",
        "bandwidth_gb_s",
        "threads_per_core",
        "memory_channels",
        "memory_mt_s",
        "memory_mt_s_max",
        "memory_mt_s_two",
        "measured_bandwidth_gb_s",
        "kernel_bandwidth_gb_s",
        "links_gb_s",
        "nodes_per_socket",
    )

    @property
    def vector(self) -> Vector:
        """The widest instructions that weight kernels use on it."""
        if "amx_int8" in self.isa:
            return "amx"
        if "avx512f" in self.isa:
            return "avx512"
        return "avx2" if "avx2" in self.isa else "arm"


@dataclass(frozen=True)
class Gpu(Row):
    """A GPU, figures for one.

    `memory_gb` as sold, `memory_mib` as its driver's tool shows it. `nvlink_gb_s` both directions
    of its direct links (AMD: Infinity Fabric), 0 where there are none; `nvlink_links` how many
    lie between it and the switch, or its bridged neighbour. `machine_names`: how the driver's
    tool names it; several rows may share one and differ in memory. `pci_ids`: the device on the
    bus, which names a GPU that no driver serves yet. `tflops_*`: dense, of its matrix units; None
    where it has none of that format or its figure is not known. `cuda`: the first toolkit that
    compiles for it. `shared_memory`: it has no memory of its own, `memory_gb` is the machine's.
    """

    name: str
    vendor: Literal["nvidia", "amd"]
    memory_gb: int
    bandwidth_gb_s: float
    tflops_bf16: float
    compute_capability: str
    nvlink_gb_s: float
    pcie_gen: int
    pcie_gb_s: float
    source: str
    confidence: Confidence
    memory_mib: int | None = None
    memory_source: str | None = None
    nvlink_links: int = 0
    nvswitch: bool = False
    tdp_w: int | None = None
    driver_branch: int | None = None
    cuda: str | None = None
    tflops_fp8: float | None = None
    tflops_fp4: float | None = None
    open_module_required: bool | None = None
    shared_memory: bool = False
    machine_names: tuple[str, ...] = ()
    pci_ids: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    note: str | None = None

    ABOVE_ZERO: ClassVar[tuple[str, ...]] = (
        "memory_gb",
        "memory_mib",
        "bandwidth_gb_s",
        "tflops_bf16",
        "tflops_fp8",
        "tflops_fp4",
        "pcie_gen",
        "pcie_gb_s",
    )

    @property
    def memory_bytes(self) -> int:
        """Memory as its driver shows it, or as sold, in GiB, if that is unknown."""
        return self.memory_mib << 20 if self.memory_mib else self.memory_gb << 30
