"""What the planner decides, as data: modules that decide import it, and it imports none of them.

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
# How weights beside the routed experts are held on processors.
Dense = Literal["bf16", "int8"]


@dataclass(frozen=True)
class Workload:
    """What is to be served by what: the engine, the model, and the format of its weights.

    `dense`: how weights beside the routed experts are held where a plugin computes those.
    """

    engine: Engine
    model: Model
    weights_format: str
    dense: Dense = "bf16"


@dataclass(frozen=True)
class EngineChoice:
    """The engine, the format it reads, and where its environment will be.

    `provisioned`: whether `apply` can install it; else it is planned and not installed.
    `experts`: who computes 4-bit experts without a GPU; None where no plugin is needed for that.
    `dense`: how that plugin holds the other weights.
    `preferred`: the engine that the planner would choose by itself, `because` of that.
    `on_gpus`: what the choice was made by; None without GPUs. `interpreter`: the build of Python
    that is brought; None where the machine's own is taken. `python_reason`: why that one.
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
    on_gpus: AllOnGpus | None = None
    interpreter: Interpreter | None = None
    python_reason: str = ""

    @property
    def locks(self) -> list[str]:
        """Every lock that the environment is made from."""
        plugin = self.engine.plugin if self.experts else None
        return [self.lock, *([plugin.lock_name] if plugin else [])]

    @property
    def hybrid(self) -> bool:
        """Whether experts stay in host memory while the rest is on GPUs."""
        return self.engine.name == "ktransformers" and self.engine.variant == "cuda"


class DraftPlan(SpeculativePlan, DraftWeights):
    """The draft model: what the plan's `speculative` says of it, and its weights."""


@dataclass(frozen=True)
class MemoryPart:
    """Something that host memory goes to."""

    kind: Literal["weights", "cache", "overhead", "system"]
    name: str
    size_bytes: int


@dataclass(frozen=True)
class ExpertSlices:
    """Bytes of the experts in memory, on how many nodes, and of a layer while it is loaded.

    `on_one_node`: the whole engine has to lie on the node where its threads are.
    """

    experts: int
    nodes: int
    loading: int
    on_one_node: bool = False


@dataclass(frozen=True)
class Stage:
    """A run of layers: how many, how many of them are dense, and what it holds beside them."""

    layers: int
    dense: int
    embedding: bool
    head: bool


@dataclass(frozen=True)
class GpuBudget:
    """What each GPU's memory goes to, in bytes, and how many of them work together.

    `memory` is what the GPU has, `utilization` the share that the engine may take of it.
    `sequences`: requests that one engine runs at once. `data`: copies of attention, each with
    requests and a cache of its own, that share the experts. `experts`: routed experts of each
    layer that live on GPUs, None where all do. `stage`: of a pipeline's stages the one whose GPUs
    are meant, which holds the fewest tokens; None where a plan has none.
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
        """GPUs that one instance takes."""
        return self.ranks * self.pipeline * self.data


@dataclass(frozen=True)
class Budget:
    """What memory goes to. `kv_bytes` is the cache of one instance, or of each GPU."""

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
        """Tokens that one conversation can have: it stays with one copy of attention."""
        spread = self.gpu.decode_context if self.gpu else 1
        return max(0, self.kv_bytes) // self.kv_bytes_per_token * spread

    @property
    def host_required(self) -> int:
        """Bytes of host memory, the system's reserve included, RAM disk not."""
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
    """`threads`: CPUs that the kernels are pinned to; `cpus`: all that the unit may use.

    `pools`: nodes that kt-kernel binds a pool to, `pool_threads` the threads of all together.
    `gpu_nodes`: the node of each GPU that works, empty where it is not known for all of them;
    `binds_itself`: whether the engine has a flag to bind each worker to its GPU's node.
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
        """Whether numactl binds its memory: what the nodes do not hold is killed, not moved."""
        return any(word.startswith("--membind") for word in self.numactl)


@dataclass(frozen=True)
class BoundMemory:
    """What the engine takes of host memory, in bytes, and the part bound strictly to nodes.

    `total`: its own copy of the weights and the system's reserve included. `strict`: the part
    that is bound, in equal shares, to `nodes`.
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
    """Where the weights come from and how many bytes they are."""

    source: str
    revision: str
    directory: str
    size_bytes: int
    pinned: bool


@dataclass(frozen=True)
class RamDisk:
    """Whether there is one, why, and its mount options."""

    enabled: bool
    size_bytes: int
    reason: str
    options: str


@dataclass(frozen=True)
class ConvertedExperts:
    """Where the converted experts are, and how many bytes; `source` None: they are made here.

    `layer_bytes`: what one layer of them takes, and once more while it is made. `pools`: thread
    pools that the files are sliced for.
    """

    method: str
    directory: str
    size_bytes: int
    layer_bytes: int
    pools: int
    source: str | None

    @property
    def room_bytes(self) -> int:
        """Disk that it takes at most."""
        return self.size_bytes + (self.layer_bytes if self.source is None else 0)


@dataclass(frozen=True)
class ServedModel:
    """Where the engine reads from and under which names; `experts` where they lie elsewhere."""

    directory: str
    names: list[str]
    experts: str | None = None


@dataclass(frozen=True)
class InstanceSlot:
    """What tells one instance from the others: its number, unit and port.

    `flags` and `environment` are what it has besides as one host of a group; a host that is not
    its group's head has no `port`.
    """

    index: int
    unit: str
    port: int | None
    flags: Mapping[str, Any]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class AllOnGpus:
    """vLLM with all weights on the GPUs: its version, the settings in its flags, and its memory.

    `replaced`: findings about the flags that it does not take.
    """

    engine: Engine
    settings: Settings
    replaced: tuple[Finding, ...]
    budget: Budget
