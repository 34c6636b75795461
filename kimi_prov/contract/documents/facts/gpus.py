"""Facts: GPUs and their drivers."""

from __future__ import annotations

from typing import Annotated, TypedDict

from kimi_prov.contract.documents.form import (
    DEPRECATED,
    CpuList,
    NotRequired,
    Quantity,
    Required,
    Whole,
)


class GpuFacts(TypedDict, total=False):
    """A GPU."""

    index: Required[Whole]
    vendor: Required[str]
    model: str | None
    name_raw: str | None
    """As the source wrote the name."""
    memory_total_bytes: Required[Annotated[Whole | None, DEPRECATED]]
    """The same as `memory_bytes`."""
    memory_bytes: Whole | None
    uuid: str | None
    pci: str | None
    compute_capability: str | None
    architecture: str | None
    memory_used_bytes: Whole | None
    pcie: PcieFacts | None
    power_limit_w: Quantity | None
    power_limit_max_w: Quantity | None
    mig: bool | None
    mig_pending: bool | None
    """What `mig` becomes at the next reset of the GPU or restart of the machine."""
    ecc: bool | None
    persistence: bool | None
    passthrough: bool | None
    numa_node: Whole | None
    cpus: CpuList | None
    memory_numa_node: Whole | None
    """The node that its memory is, on machines that show it as one (Grace)."""
    fabric_state: str | None
    """Completed where NVSwitches are up; a virtual machine gets the GPUs but not the switches."""
    fabric_status: str | None
    measured: GpuSpeeds | None


class PcieFacts(TypedDict, total=False):
    """A GPU's slot."""

    gen: Whole | None
    """It falls while a GPU idles."""
    gen_max: Whole | None
    """Below `gen_card` the slot slows the card down."""
    gen_card: Whole | None
    width: Whole | None
    """Below `width_max` the slot slows the card down."""
    width_max: Whole | None


class GpuSpeeds(TypedDict, total=False):
    """The results of `--measure` for a GPU."""

    bandwidth_bytes_per_s: Quantity | None
    """Of its memory, bytes read and written."""
    copy_bytes_per_s: Quantity | None
    """Of copies to it alone."""
    copy_together_bytes_per_s: Quantity | None
    """Of copies to it while all GPUs are copied to."""
    bf16_flops_per_s: Quantity | None
    """Operations a second."""
    fp8_flops_per_s: Quantity | None
    """Operations a second."""


class NvidiaFacts(TypedDict, total=False):
    """NVIDIA's driver and its parts."""

    pci_devices: Required[Whole | None]
    driver_loaded: Required[str | None]
    """The module that runs."""
    driver_installed: Required[str | None]
    """The one on the disk: where they differ, a restart is needed."""
    open_module: Required[bool | None]
    cuda: str | None
    libs: dict[str, str | None] | None
    fabric_manager: FabricManagerFacts | None
    nscq: str | None
    nvlink: NvlinkFacts | None
    nvswitch: bool | None
    held: bool | None
    """Whether all packages of the driver are held back from upgrades."""
    packages: dict[str, str]
    persistenced: bool | None
    pci_ids: list[str] | None
    nvswitch_devices: Whole | None
    module_key_enrolled: bool | None


class FabricManagerFacts(TypedDict):
    """The fabric manager, which NVSwitches need."""

    package_version: NotRequired[str | None]
    active: NotRequired[bool | None]


class NvlinkFacts(TypedDict, total=False):
    """Links between the GPUs."""

    matrix: list[list[Whole | None]] | None
    """Links between each two GPUs; 0 is none."""
    paths: list[list[str | None]] | None
    links_per_gpu: list[Whole | None]
    link_bytes_per_s: Quantity | None


class AmdFacts(TypedDict):
    """AMD's driver."""

    driver: NotRequired[str | None]
    rocm: NotRequired[str | None]


class GibFacts(TypedDict, total=False):
    """Google's NCCL plugins, by files, by the loader's folders and by its cache."""

    present: bool | None
    ld_conf: list[str]
    cached: list[str]
    directories: list[str]
