"""How weights, cache and overhead share the memory, and which context that leaves. All in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.planner.findings import human
from kimi_prov.planner.memory import architecture
from kimi_prov.planner.memory.numa import room_of, roomiest

if TYPE_CHECKING:
    from kimi_prov.catalog.loader import Engine, Model
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Wishes

GIB = 1 << 30
# Contexts are offered in whole blocks of this many tokens.
CONTEXT_STEP = 1024
_SOURCE = "MLA keeps layers x (kv_lora + rope) x 2 bytes for each token on every rank"
_RAM_SOURCE = "weights, cache, the engine's own memory and a reserve for the system"


@dataclass(frozen=True)
class Part:
    """Something that host memory goes to; `kind` is weights, cache, overhead or system."""

    kind: str
    name: str
    size_bytes: int


@dataclass(frozen=True)
class Slices:
    """Bytes of the experts in memory, on how many nodes, and of a layer while it is loaded."""

    experts: int
    nodes: int
    loading: int


@dataclass(frozen=True)
class Graphics:
    """What each GPU's memory goes to, in bytes, and how many of them work together.

    `memory` is what the card has, `utilization` the share that the engine may take of it.
    `sequences`: requests that one engine runs at once. `data`: copies of attention, each with
    requests and a cache of its own, that share the experts. `experts`: routed experts of each
    layer that live on GPUs, None where all do.
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
    parts: tuple[Part, ...]
    weights_total: int
    graphics: Graphics | None = None
    instances: int = 1

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache of one instance holds, all requests together."""
        return self.kv_tokens_one * (self.graphics.data if self.graphics else 1)

    @property
    def kv_tokens_one(self) -> int:
        """Tokens that one conversation can have: it stays with one copy of attention."""
        spread = self.graphics.decode_context if self.graphics else 1
        return max(0, self.kv_bytes) // self.kv_bytes_per_token * spread

    @property
    def host_required(self) -> int:
        """Bytes of host memory, the system's reserve included, RAM disk not."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def tensor_parallel(self) -> int:
        """GPUs that share one model."""
        return self.graphics.ranks if self.graphics else 1

    def document(self, host: Host, ram_disk_bytes: int) -> dict[str, Any]:
        """Give the plan's `memory`."""
        card = self.graphics
        return {
            "weights_bytes_total": self.weights_total,
            "weights_bytes_per_gpu": card.weights if card else None,
            "replicated_bytes_per_gpu": card.replicated if card else None,
            "gpu_bytes": card.memory if card else None,
            "gpu_utilization": card.utilization if card else None,
            "gpu_experts": card.experts if card else None,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_available_bytes_per_gpu": self.kv_bytes if card else None,
            "kv_available_bytes": None if card else self.kv_bytes,
            "kv_tokens_max": self.kv_tokens,
            "overhead_bytes_per_gpu": card.overhead if card else None,
            "host_ram_required_bytes": self.host_required + ram_disk_bytes,
            "host_ram_available_bytes": host.memory_bytes,
            "host_parts": [
                {"kind": part.kind, "name": part.name, "bytes": part.size_bytes}
                for part in self.parts
            ],
        }


def on_cpu(
    host: Host,
    wishes: Wishes,
    model: Model,
    engine: Engine,
    sizes: tuple[int, int],
    slices: Slices | None = None,
    instances: int = 1,
) -> Budget:
    """Count as vLLM's CPU backend does: cache in whole GiB, weights copied into memory.

    `sizes`: bytes of the weights as they lie in memory, and of the checkpoint; `slices`: how
    experts by kt-kernel or repacked ones lie on the nodes. Of several `instances` each has a node
    of its own, its own copy of all and a share of the requests.
    """
    weights, checkpoint = sizes
    loading = slices.loading if slices else 0
    per_token = architecture.kv_bytes_per_token(model.architecture)
    free = host.memory_bytes - host.reserve_bytes
    if instances > 1:
        free = min(room_of(node) for node in roomiest(host, instances))
    free -= weights + engine.overhead_bytes + loading
    if slices is not None and slices.nodes > 1:
        # vLLM keeps its own weights and the cache on the first node alone.
        beside = weights - slices.experts + engine.overhead_bytes
        own = -(-(slices.experts + loading + host.reserve_bytes) // slices.nodes)
        free = min(free, min(n.memory_bytes for n in host.nodes) - own - beside)
    most = max(GIB, free // GIB * GIB)
    context = fitting_context(wishes, model, most // per_token)
    requests = -(-int(wishes.concurrency) // instances)
    wanted = -(-context * requests * per_token // GIB) * GIB
    kv = max(GIB, min(wanted, most))
    return Budget(
        context=context,
        kv_bytes=kv,
        kv_bytes_per_token=per_token,
        kv_dtype="bf16",
        parts=(
            Part("weights", "Weights", instances * weights),
            Part("cache", "Cache of conversations", instances * kv),
            Part("overhead", "The engine's processes", instances * engine.overhead_bytes),
            *(
                [Part("overhead", "A layer while it is loaded", instances * loading)]
                if loading
                else []
            ),
            Part("system", "Left to the system", host.reserve_bytes),
        ),
        weights_total=checkpoint,
        instances=instances,
    )


def cpu_resident_bytes(model: Model, weights_format: str, experts: int | None) -> int:
    """Return what the weights take in memory without GPUs: more than the files where repacked.

    `experts`: bytes of the routed experts in memory, None where they stay as in the files.
    """
    shape = model.architecture
    if experts is None:
        return architecture.checkpoint_bytes(shape, weights_format)
    return experts + architecture.plain_bytes(shape, weights_format)


def fitting_context(wishes: Wishes, model: Model, most_tokens: int) -> int:
    """Tokens asked for, or the most that model and cache allow in whole steps."""
    given = wishes.engine_args.get("max-model-len")
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return int(given)
    if not wishes.auto("context"):
        return int(wishes.context)
    fits = max(CONTEXT_STEP, most_tokens // CONTEXT_STEP * CONTEXT_STEP)
    return min(model.context, fits)


def judge(host: Host, wishes: Wishes, model: Model, found: Budget, findings: Findings) -> None:
    """Say what does not fit: host memory, each GPU's memory, the context."""
    _judge_ram(host, found, findings)
    _judge_graphics(model, found, findings)
    _judge_context(wishes, model, found, findings)


def _judge_ram(host: Host, found: Budget, findings: Findings) -> None:
    if not host.memory_bytes:
        findings.warning(
            "memory.host",
            "How much memory the machine has is not known",
            observed="unknown",
            required=human(found.host_required),
            fix="name the memory in the spec sheet, or probe the machine",
            source=_RAM_SOURCE,
        )
    elif found.host_required > host.memory_bytes:
        findings.blocker(
            "memory.host",
            "The machine has too little memory for this model",
            observed=human(host.memory_bytes),
            required=human(found.host_required),
            fix="use a machine with more memory, a smaller model, or a smaller kimi_context",
            source=_RAM_SOURCE,
        )
    else:
        findings.passed(
            "memory.host",
            "Memory holds the engine, its weights and its cache",
            observed=human(host.memory_bytes),
            required=human(found.host_required),
            source=_RAM_SOURCE,
        )


def _judge_graphics(model: Model, found: Budget, findings: Findings) -> None:
    card = found.graphics
    if card is None:
        return
    usable = int(card.memory * card.utilization)
    need = card.weights + card.overhead
    shown = (
        f"{human(card.weights)} of weights and {human(card.overhead)} of working memory on each "
        f"of {card.ranks} GPU(s)"
    )
    source = "weights over the ranks, what every rank holds in full, working memory as measured"
    if found.kv_bytes <= 0:
        findings.blocker(
            "gpu.memory",
            f"The GPUs do not hold {model.name}: no memory is left for the cache",
            observed=f"{human(usable)} usable of {human(card.memory)} on each "
            f"(the engine would say `Available KV cache memory: {found.kv_bytes / GIB:.2f} GiB`)",
            required=f"more than {human(need)}: {shown}",
            fix="use more or larger GPUs"
            + (
                ", or kimi_engine: ktransformers, which keeps experts in host memory"
                if model.versions("ktransformers") and card.experts is None
                else ""
            ),
            source=source,
        )
    else:
        findings.passed(
            "gpu.memory",
            "The GPUs hold their share of the weights",
            observed=f"{human(usable)} usable on each, {human(found.kv_bytes)} of it for the cache",
            required=shown,
            source=source,
        )


def _judge_context(wishes: Wishes, model: Model, found: Budget, findings: Findings) -> None:
    if found.context > model.context:
        findings.blocker(
            "context.model",
            f"{model.name} was not made for so long a context",
            observed=f"kimi_context: {found.context}",
            required=f"at most {model.context} tokens",
            fix=f"set kimi_context to {model.context} or less, or to auto",
            source=model.source,
        )
    if found.kv_tokens_one < found.context:
        findings.blocker(
            "context.memory",
            "The cache cannot hold one conversation of that length",
            observed=f"room for {found.kv_tokens_one} tokens",
            required=f"{found.context} tokens",
            fix=_shorter(model, found),
            source=_SOURCE,
        )
    elif found.kv_tokens * found.instances < found.context * int(wishes.concurrency):
        findings.info(
            "context.concurrency",
            "Not every request can use the whole context at once; some will wait",
            observed=f"cache for {found.kv_tokens * found.instances} tokens",
            required=f"{wishes.concurrency} x {found.context} tokens for all at once",
            source=_SOURCE,
        )


def _shorter(model: Model, found: Budget) -> str:
    """Say which context fits, and what would hold the one asked for."""
    if found.kv_tokens_one < CONTEXT_STEP:
        return "use a machine with more memory, or more or larger GPUs"
    ways = [f"set kimi_context to {found.kv_tokens_one // CONTEXT_STEP * CONTEXT_STEP} or less"]
    card = found.graphics
    if card is not None and card.experts is None:
        if found.kv_dtype == "bf16" and 2 * found.kv_tokens_one >= found.context:
            ways.append(f"kimi_kv_dtype to fp8 (room for {2 * found.kv_tokens_one} tokens)")
        if card.decode_context == 1 and card.ranks * found.kv_tokens_one >= found.context:
            ways.append(f"decode-context-parallel-size {card.ranks} in kimi_engine_args")
        if model.versions("ktransformers"):
            ways.append("kimi_engine to ktransformers (experts in host memory, slower)")
    return ", or ".join(ways)
