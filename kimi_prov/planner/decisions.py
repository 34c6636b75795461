"""The planner's decisions as data: modules that decide import it, and it imports none of them.

Sizes are in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kimi_prov.contract.documents.plan.engine import SpeculativePlan
from kimi_prov.contract.documents.plan.weights import DraftWeights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.engines import Engine
    from kimi_prov.catalog.models import Model
    from kimi_prov.catalog.pythons import Interpreter
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.facts.host import Python
    from kimi_prov.planner.settings.parsing import Settings

GIB = 1 << 30

ExpertBackend = Literal["native", "kt", "vllm"]
# How processors hold the weights beside the routed experts.
Dense = Literal["bf16", "int8"]


@dataclass(frozen=True)
class Workload:
    """The engine, the model, and the format of its weights.

    `dense`: how weights beside the routed experts are held if a plugin computes the experts.
    """

    engine: Engine
    model: Model
    weights_format: str
    dense: Dense = "bf16"


@dataclass(frozen=True)
class Prepared:
    """Whether the engine keeps its own slices of the weights in files, and why."""

    enabled: bool
    reason: str


@dataclass(frozen=True)
class EngineChoice:
    """The engine, the format that it reads, and the path of its environment.

    `provisioned`: whether `apply` can install it; else it is planned and not installed.
    `experts`: the backend of 4-bit experts without a GPU; None where no plugin is needed.
    `dense`: how that plugin holds the other weights.
    `over_nodes`: whether one engine takes all NUMA nodes, its weights cut over them.
    `preferred`: the engine that the planner would choose by itself; `because`: the reason.
    `on_gpus`: vLLM on the GPUs, by which the choice was made; None without GPUs. `interpreter`: the
    bundled build of Python; None for the machine's own. `python_reason`: why that one. `beside`:
    the memory where experts, or all weights, are in that of the host.
    """

    engine: Engine
    weights_format: str
    python: Python
    lock: str
    env_name: str
    reason: str
    provisioned: bool
    preferred: str
    because: str
    experts: ExpertBackend | None = None
    dense: Dense = "bf16"
    over_nodes: bool = False
    on_gpus: AllOnGpus | None = None
    interpreter: Interpreter | None = None
    python_reason: str = ""
    beside: OutsideGpus | None = None
    prepared: Prepared = Prepared(enabled=False, reason="")

    @property
    def locks(self) -> list[str]:
        """The locks of the environment."""
        plugins = (
            self.engine.plugin if self.experts else None,
            self.engine.prepared if self.prepared.enabled else None,
        )
        return [self.lock, *[plugin.lock_name for plugin in plugins if plugin]]

    @property
    def layout_reason(self) -> str:
        """Why the model lies on the machine as it does; empty where there was nothing to choose."""
        if self.beside is not None:
            return self.beside.because
        return self.on_gpus.because if self.on_gpus else ""

    @property
    def budget(self) -> Budget:
        """The memory of what was chosen."""
        chosen = self.beside or self.on_gpus
        assert chosen is not None, "asked before the search"  # noqa: S101
        return chosen.budget

    @property
    def hybrid(self) -> bool:
        """Whether experts stay in host memory while the rest is on GPUs."""
        return self.engine.name == "ktransformers" and self.engine.variant == "cuda"


class DraftPlan(SpeculativePlan, DraftWeights):
    """The draft model: the plan's `speculative` section, and its weights."""


@dataclass(frozen=True)
class MemoryPart:
    """A part of the use of host memory."""

    kind: Literal["weights", "cache", "overhead", "system"]
    name: str
    size_bytes: int


@dataclass(frozen=True)
class ExpertSlices:
    """Bytes of the experts in memory, their number of nodes, and bytes of a layer during loading.

    `on_one_node`: the whole engine has to be on the node of its threads.
    """

    experts: int
    nodes: int
    loading: int
    on_one_node: bool = False


@dataclass(frozen=True)
class Stage:
    """A pipeline stage: its layers, the dense ones among them, and what it holds beside them."""

    layers: int
    dense: int
    embedding: bool
    head: bool


@dataclass(frozen=True)
class GpuBudget:
    """The use of each GPU's memory, in bytes, and the number of GPUs that work together.

    `memory` is the GPU's, `utilization` the share that the engine may use.
    `sequences`: requests that one engine runs at once. `data`: copies of attention, each with
    requests and a cache of its own, that share the experts. `experts`: routed experts of each
    layer on GPUs, None where all are. `stage`: the pipeline stage of these GPUs, which holds the
    fewest tokens; None without stages.
    """

    ranks: int
    memory: int
    utilization: float
    weights: int
    replicated: int
    overhead: int
    batched_tokens: int
    sequences: int = 0
    expert_parallel: bool = False
    decode_context: int = 1
    pipeline: int = 1
    data: int = 1
    experts: int | None = None
    stage: Stage | None = None

    @property
    def gpus(self) -> int:
        """GPUs of one instance."""
        return self.ranks * self.pipeline * self.data


@dataclass(frozen=True)
class Budget:
    """The use of memory. `kv_bytes` is the cache of one instance, or of each GPU."""

    context: int
    kv_bytes: int
    kv_bytes_per_token: int
    kv_dtype: str
    parts: tuple[MemoryPart, ...]
    weights_total: int
    gpu: GpuBudget | None = None
    instances: int = 1

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache of one instance holds, all requests together."""
        return self.kv_tokens_one * (self.gpu.data if self.gpu else 1)

    @property
    def kv_tokens_one(self) -> int:
        """Tokens of the longest conversation, which stays with one copy of attention."""
        spread = self.gpu.decode_context if self.gpu else 1
        return max(0, self.kv_bytes) // self.kv_bytes_per_token * spread

    @property
    def host_required(self) -> int:
        """Bytes of host memory with the system's reserve, without a RAM disk."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def host_weights(self) -> int:
        """Bytes of weights in host memory."""
        return sum(part.size_bytes for part in self.parts if part.kind == "weights")

    @property
    def tensor_parallel(self) -> int:
        """GPUs that share one model."""
        return self.gpu.ranks if self.gpu else 1


@dataclass(frozen=True)
class Placement:
    """`threads`: CPUs to which the kernels are pinned; `cpus`: all CPUs that the unit may use.

    `pools`: nodes that kt-kernel binds a pool to, `pool_threads` the threads of all together.
    `gpu_nodes`: the node of each used GPU, empty unless known for all of them;
    `binds_itself`: whether the engine has a flag that binds each worker to its GPU's node.
    """

    numactl: tuple[str, ...]
    nodes: tuple[int, ...]
    cpus: str
    threads: str
    pools: tuple[int, ...] = ()
    pool_threads: int = 0
    gpu_nodes: tuple[int, ...] = ()
    binds_itself: bool = False

    @property
    def strict(self) -> bool:
        """Whether numactl binds its memory: if the nodes are full, the process is killed."""
        return any(word.startswith("--membind") for word in self.numactl)


@dataclass(frozen=True)
class BoundMemory:
    """The engine's use of host memory, in bytes, and the part bound strictly to nodes.

    `total`: with its own copy of the weights and the system's reserve. `strict`: the part that is
    bound, in equal shares, to `nodes`.
    """

    total: int
    nodes: tuple[int, ...] = ()
    strict: int = 0

    @property
    def share(self) -> int:
        """Bytes that each of the nodes has to hold."""
        return self.strict // max(1, len(self.nodes))


@dataclass(frozen=True)
class Weights:
    """The source of the weights and their bytes."""

    source: str
    revision: str
    directory: str
    size_bytes: int
    pinned: bool


@dataclass(frozen=True)
class RamDisk:
    """Whether there is a RAM disk, why, and its mount options."""

    enabled: bool
    size_bytes: int
    reason: str
    options: str


@dataclass(frozen=True)
class ConvertedExperts:
    """The path of the converted experts, and their bytes; `source` None: the machine converts.

    `layer_bytes`: bytes of one layer, which are needed twice during conversion. `pools`: thread
    pools for which the files are sliced.
    """

    method: str
    directory: str
    size_bytes: int
    layer_bytes: int
    pools: int
    source: str | None

    @property
    def room_bytes(self) -> int:
        """The most bytes of disk that the conversion takes."""
        return self.size_bytes + (self.layer_bytes if self.source is None else 0)


@dataclass(frozen=True)
class ServedModel:
    """The model's path and names; `experts`: their path if it is another."""

    directory: str
    names: list[str]
    experts: str | None = None


@dataclass(frozen=True)
class InstanceSlot:
    """The values that distinguish one instance: its number, unit and port.

    `flags` and `environment` are those of a host of a group; a host that is not its group's head
    has no `port`.
    """

    index: int
    unit: str
    port: int | None
    flags: Mapping[str, Any]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class OutsideGpus:
    """The memory of an engine with weights in that of the host; `because`: why so.

    `instead`: what would be chosen if another layout did not serve already.
    """

    budget: Budget
    because: str = ""
    instead: str = ""


@dataclass(frozen=True)
class AllOnGpus:
    """vLLM with all weights on the GPUs: its version, settings with its flags, and its memory.

    `replaced`: findings about flags that it does not accept. `because`: why this layout was chosen
    among others; empty where there was nothing to choose. `instead`: the layout that would be
    chosen if another one did not serve already.
    """

    engine: Engine
    settings: Settings
    replaced: tuple[Finding, ...]
    budget: Budget
    because: str = ""
    instead: str = ""
