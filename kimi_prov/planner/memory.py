"""How weights, cache and overhead share the memory, and which context that leaves. All in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.planner import architecture
from kimi_prov.planner.findings import human

if TYPE_CHECKING:
    from kimi_prov.catalog.loader import Engine, Model
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.host import Host
    from kimi_prov.planner.wishes import Wishes

_GIB = 1 << 30
# Contexts are offered in whole blocks of this many tokens.
_CONTEXT_STEP = 1024
_SOURCE = "MLA keeps layers x (kv_lora + rope) x 2 bytes for each token on every rank"


@dataclass(frozen=True)
class Budget:
    """What memory goes to. `kv_bytes` is the cache of one instance, or of each GPU."""

    context: int
    kv_bytes: int
    kv_bytes_per_token: int
    host_required: int
    tensor_parallel: int
    weights_total: int
    weights_per_gpu: int | None
    overhead_per_gpu: int | None

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache holds, all requests together."""
        return max(0, self.kv_bytes) // self.kv_bytes_per_token

    def document(self, host: Host, ram_disk_bytes: int) -> dict[str, Any]:
        """Give the plan's `memory`."""
        on_gpu = self.weights_per_gpu is not None
        return {
            "weights_bytes_total": self.weights_total,
            "weights_bytes_per_gpu": self.weights_per_gpu,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_available_bytes_per_gpu": self.kv_bytes if on_gpu else None,
            "kv_available_bytes": None if on_gpu else self.kv_bytes,
            "kv_tokens_max": self.kv_tokens,
            "overhead_bytes_per_gpu": self.overhead_per_gpu,
            "host_ram_required_bytes": self.host_required + ram_disk_bytes,
            "host_ram_available_bytes": host.memory_bytes,
        }


def budget(
    host: Host,
    wishes: Wishes,
    model: Model,
    engine: Engine,
    weights_format: str,
    findings: Findings,
) -> Budget:
    """Share the memory out. What does not fit becomes a blocker."""
    shape = model.architecture
    weights = architecture.checkpoint_bytes(shape, weights_format)
    per_token = architecture.kv_bytes_per_token(shape)
    if host.gpu_bytes:
        found = _on_gpus(host, wishes, model, engine, (weights, per_token))
    else:
        found = _on_cpu(host, wishes, model, engine, (weights, per_token))
    _judge_ram(host, found, findings)
    _judge_context(wishes, model, found, findings)
    return found


def _on_cpu(
    host: Host, wishes: Wishes, model: Model, engine: Engine, sizes: tuple[int, int]
) -> Budget:
    """Count as vLLM's CPU backend does: cache in whole GiB, weights copied into memory."""
    weights, per_token = sizes
    free = host.memory_bytes - host.reserve_bytes - weights - engine.overhead_bytes
    most = max(_GIB, free // _GIB * _GIB)
    context = _context(wishes, model, most // per_token)
    wanted = -(-context * int(wishes.concurrency) * per_token // _GIB) * _GIB
    kv = max(_GIB, min(wanted, most))
    return Budget(
        context=context,
        kv_bytes=kv,
        kv_bytes_per_token=per_token,
        host_required=weights + kv + engine.overhead_bytes + host.reserve_bytes,
        tensor_parallel=1,
        weights_total=weights,
        weights_per_gpu=None,
        overhead_per_gpu=None,
    )


def _on_gpus(
    host: Host, wishes: Wishes, model: Model, engine: Engine, sizes: tuple[int, int]
) -> Budget:
    """Tensor parallel over the largest power of two of GPUs that divides the heads."""
    weights, per_token = sizes
    shape = model.architecture
    ranks = 1
    while ranks * 2 <= len(host.gpu_bytes) and shape.heads % (ranks * 2) == 0:
        ranks *= 2
    replicated = architecture.replicated_bytes(shape)
    share = (weights - replicated) // ranks + replicated
    usable = int(min(host.gpu_bytes) * (engine.gpu_memory_utilization or 0.9))
    kv = usable - share - engine.gpu_overhead_bytes
    return Budget(
        context=_context(wishes, model, kv // per_token),
        kv_bytes=kv,
        kv_bytes_per_token=per_token,
        host_required=engine.overhead_bytes + host.reserve_bytes,
        tensor_parallel=ranks,
        weights_total=weights,
        weights_per_gpu=share,
        overhead_per_gpu=engine.gpu_overhead_bytes,
    )


def _context(wishes: Wishes, model: Model, most_tokens: int) -> int:
    """Tokens asked for, or the most that model and cache allow in whole steps."""
    if not wishes.auto("context"):
        return int(wishes.context)
    fits = max(_CONTEXT_STEP, most_tokens // _CONTEXT_STEP * _CONTEXT_STEP)
    return min(model.context, fits)


def _judge_ram(host: Host, found: Budget, findings: Findings) -> None:
    if found.host_required > host.memory_bytes:
        findings.blocker(
            "memory.host",
            "The machine has too little memory for this model",
            observed=human(host.memory_bytes),
            required=human(found.host_required),
            fix="use a machine with more memory, a smaller model, or a smaller kimi_context",
            source="weights, cache, the engine's own memory and a reserve for the system",
        )
        return
    findings.passed(
        "memory.host",
        "Memory holds the engine, its weights and its cache",
        observed=human(host.memory_bytes),
        required=human(found.host_required),
        source="weights, cache, the engine's own memory and a reserve for the system",
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
    if found.kv_tokens < found.context:
        findings.blocker(
            "context.memory",
            "The cache cannot hold one conversation of that length",
            observed=f"room for {found.kv_tokens} tokens",
            required=f"{found.context} tokens",
            fix=f"set kimi_context to {found.kv_tokens // _CONTEXT_STEP * _CONTEXT_STEP} or less"
            if found.kv_tokens >= _CONTEXT_STEP
            else "use a machine with more memory, or more or larger GPUs",
            source=_SOURCE,
        )
    elif found.kv_tokens < found.context * int(wishes.concurrency):
        findings.info(
            "context.concurrency",
            "Not every request can use the whole context at once; some will wait",
            observed=f"cache for {found.kv_tokens} tokens",
            required=f"{wishes.concurrency} x {found.context} tokens for all at once",
            source=_SOURCE,
        )
