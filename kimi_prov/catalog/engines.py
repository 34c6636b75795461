"""Versions of engines in the catalogue. Units stand in the names; None is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kimi_prov.catalog.confidence import Confidence  # noqa: TC001  (read at run time)
from kimi_prov.catalog.currency import Row
from kimi_prov.catalog.names import PathName  # noqa: TC001  (read at run time)
from kimi_prov.catalog.versions import parse_version


@dataclass(frozen=True)
class Plugin:
    """A package of this project inside an engine's environment, and the formats that it serves."""

    name: PathName
    version: PathName
    formats: tuple[str, ...]
    python: tuple[PathName, ...]
    glibc: str
    installed_bytes: int
    source: str

    @property
    def lock_name(self) -> str:
        """Name of the plugin's lock file."""
        return f"{self.name}-{self.version}.txt"


@dataclass(frozen=True)
class Engine(Row):
    """One version of an engine, its requirements and its sizes in bytes.

    `overhead_bytes` is host memory beside weights and cache, `gpu_overhead_bytes` the same of
    each GPU, `gpu_graphs_bytes` of that what CUDA graphs take where the engine sets it aside before
    it sizes its cache; `install_peak_bytes` the disk room that installing takes. `methods` maps a
    weight format to the name by which a hybrid engine asks for it. `compute_capabilities`: GPUs
    that its machine code is for, none where that was not read. `moe_tuner_sha256`: digest of
    benchmarks/kernels/benchmark_moe.py in the sources of this version. `messages_api`: whether it
    answers Anthropic's API at /v1/messages, None where its sources were not read for that. `nvcc`:
    whether its locks have CUDA's compiler, by which it can build kernels on the machine.
    `prepared`: the plugin of prepared weights, with the formats in which they are prepared.
    """

    name: PathName
    variant: PathName
    version: PathName
    distribution: str
    module: PathName
    python: tuple[PathName, ...]
    glibc: str
    arch: tuple[str, ...]
    isa_any: tuple[str, ...]
    formats: tuple[str, ...]
    architectures: tuple[str, ...]
    installed_bytes: int
    install_peak_bytes: int
    overhead_bytes: int
    source: str
    confidence: Confidence
    numa_bind_flags: bool = False
    mla: dict[str, int] | None = None
    methods: dict[str, str] | None = None
    driver_branch: int | None = None
    torch: str | None = None
    cuda: str | None = None
    transformers: str | None = None
    compute_capabilities: tuple[str, ...] = ()
    gpu_memory_utilization: float | None = None
    gpu_overhead_bytes: int = 0
    gpu_graphs_bytes: int = 0
    plugin: Plugin | None = None
    prepared: Plugin | None = None
    moe_tuner_sha256: str | None = None
    messages_api: bool | None = None
    nvcc: bool = False
    note: str | None = None

    def built_for(self, capability: str | None) -> bool:
        """Whether it has machine code for a GPU; true if one of the two is unknown."""
        known = self.compute_capabilities
        return not known or capability is None or capability in known

    def lock_name(self, python: str) -> str:
        """Return the name of the lock file for a Python such as "3.11"."""
        tag = "cp" + python.replace(".", "")
        return f"{self.name}-{self.variant}-{self.version}-{tag}.txt"


# What a worker goes through: what its GPU needs of the files ("worker"), which is more than it
# keeps where it turns packed experts over; or an equal share of them ("share").
Counted = Literal["worker", "share"]


@dataclass(frozen=True)
class LoadWay(Row):
    """A way in which versions of an engine bring weights into GPUs.

    It holds from `least` on and below `before`, for packed integers, for other weights, or for both
    (`packed` null). `gb_s`: what one worker alone brought from memory into one GPU in this way.
    """

    name: str
    engine: str
    load_formats: tuple[str, ...]
    counted: Counted
    gb_s: float
    source: str
    confidence: Confidence
    packed: bool | None = None
    least: str | None = None
    before: str | None = None
    note: str | None = None

    def covers(self, version: str, load_format: str, *, packed: bool) -> bool:
        """Whether a version loads such weights in this way."""
        version_parts = parse_version(version)
        return (
            load_format in self.load_formats
            and self.packed in (None, packed)
            and (self.least is None or parse_version(self.least) <= version_parts)
            and (self.before is None or version_parts < parse_version(self.before))
        )


@dataclass(frozen=True)
class LoadTime(Row):
    """The seconds in which a model's weights came from memory into GPUs.

    `layers`: so many of the model's, where it was cut. `tensor`: ranks, where fewer than GPUs;
    `data`: copies of attention.
    """

    id: str
    author: str
    engine: str
    version: str
    model: str
    weights: str
    gpu: str
    gpus: int
    seconds: float
    source: str
    confidence: Confidence
    load_format: str = "auto"
    layers: int | None = None
    tensor: int | None = None
    data: int = 1
    expert: bool = False
    note: str | None = None
