"""Memory for KTransformers: all experts in host memory, as many as fit on the GPUs as well.

Decides: the memory budget (of KTransformers).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kimi_prov.catalog import model_bytes
from kimi_prov.on_host.kt import quantise
from kimi_prov.planner.decisions import Budget, GpuBudget, MemoryPart
from kimi_prov.planner.engine import sglang
from kimi_prov.planner.memory import gpu, layouts
from kimi_prov.planner.memory.context import CONTEXT_STEP, choose_context
from kimi_prov.planner.settings.flag_names import (
    KT,
    SGLANG_KT,
    parse_int,
    parse_kv_dtype,
    parse_share,
)

if TYPE_CHECKING:
    from kimi_prov.catalog.engines import Engine
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.models import Architecture, Format
    from kimi_prov.contract.documents.plan.engine import HybridPlan
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import EngineChoice, Placement, Workload
    from kimi_prov.planner.settings.parsing import Settings

# Bytes that a GPU needs beside weights, cache and a staged layer.
_GPU_OVERHEAD = round(2.75e9)
# Tokens of a long prompt that are computed at a time. Where each chunk streams all layers to the
# GPU: the largest chunk that takes at most this share of a GPU's memory. On the CPU: the smallest,
# because other requests wait for each chunk. _GPU_OVERHEAD includes the smallest.
_CHUNKS, _CHUNK_SHARE = (16384, 8192, 4096), 0.05
# Share of a GPU's memory that weights, cache and overhead may take together.
_GPU_SHARE = 0.98
# The cache's share of the memory for experts and cache, where the inventory sets neither.
_CACHE_SHARE = 0.3


def find_resident_format(
    catalogue: Catalogue, engine: Engine, weights_format: str
) -> Format | None:
    """Return the format in which kt-kernel keeps experts of these weights in memory, or None."""
    method = (engine.methods or {}).get(weights_format)
    rows = [row for row in catalogue.formats if row.kind == "resident" and row.kt_method == method]
    return rows[0] if method and rows else None


def _list_host_parts(host: Host, catalogue: Catalogue, work: Workload) -> tuple[MemoryPart, ...]:
    """List the parts of host memory: the experts, the engine with a staged layer, the system."""
    engine, shape = work.engine, work.model.architecture
    resident = find_resident_format(catalogue, engine, work.weights_format)
    per_weight = resident.expert_bytes if resident else 2.0
    routed = model_bytes.count_routed_params(shape)
    # Converted experts have the same bytes on disk as in memory; others have the checkpoint's.
    converted = (engine.methods or {}).get(work.weights_format) in quantise.KERNELS
    read = per_weight if converted else catalogue.format(work.weights_format).expert_bytes
    # While a layer is loaded, or staged for the GPU, memory holds it twice.
    staged = round(routed / (shape.layers - shape.dense_layers) * read)
    return (
        MemoryPart("weights", "Experts in host memory", round(routed * per_weight)),
        MemoryPart(
            "overhead", "Staging and the engine's processes", engine.overhead_bytes + staged
        ),
        MemoryPart("system", "Left to the system", host.reserve_bytes),
    )


def list_budgets(
    host: Host, settings: Settings, catalogue: Catalogue, work: Workload
) -> list[Budget]:
    """List how KTransformers may share out memory: over all GPUs first, then over half of them."""
    most = layouts.count_tensor_ranks(host, settings, catalogue, work)
    if SGLANG_KT.tensor_parallel in settings.engine_args:
        return [make_budget(host, settings, catalogue, work, most)]
    sizes = [1 << power for power in reversed(range(most.bit_length()))]
    budgets = [make_budget(host, settings, catalogue, work, many) for many in sizes]
    # Fewer GPUs have to hold as long a conversation.
    return [row for row in budgets if row.kv_bytes > 0 and row.context >= budgets[0].context] or [
        budgets[0]
    ]


def make_budget(
    host: Host, settings: Settings, catalogue: Catalogue, work: Workload, many: int
) -> Budget:
    """Share out memory for KTransformers: experts in RAM, as many as fit on `many` GPUs as well.

    Each GPU holds the weights that are no routed experts, the cache, working memory, and a whole
    layer where long prompts are computed on it layer by layer. Experts fill what is left (kt issue
    1817: 24.34 GB + cache + 1.486 GB for each expert).
    """
    engine, model, weights_format = work.engine, work.model, work.weights_format
    shape, args = model.architecture, settings.engine_args
    sparse = shape.layers - shape.dense_layers
    method = (engine.methods or {}).get(weights_format)
    streams = sglang.choose_gpu_prefill_threshold(args.get(KT.method) or method) is not None
    memory = int(min(host.gpu_bytes) * gpu.VISIBLE_SHARE)
    plain = model_bytes.count_plain_bytes(shape, weights_format, many)
    each = model_bytes.count_expert_bytes(shape, weights_format) / many
    layer = round(each * shape.experts / sparse) if streams else 0
    proposed = _choose_chunk(shape, memory) if streams else _CHUNKS[-1]
    chunk = parse_int(args.get(SGLANG_KT.chunk)) or proposed
    overhead = _GPU_OVERHEAD + layer + gpu.count_pass_bytes(shape, max(0, chunk - _CHUNKS[-1]))
    free = int(memory * _GPU_SHARE) - plain - overhead
    share = parse_share(args.get(SGLANG_KT.gpu_share))
    if share is not None:
        free = min(free, int(memory * share) - plain)
    own_dtype = "bf16" if settings.auto("kv_dtype") else str(settings.kv_dtype)
    dtype = parse_kv_dtype(args.get(SGLANG_KT.kv_dtype)) or own_dtype
    per_token = model_bytes.count_kv_bytes_per_token(shape, gpu.KV_BYTES[dtype], many)
    requests = parse_int(args.get(SGLANG_KT.requests)) or settings.concurrency
    experts = parse_int(args.get(SGLANG_KT.gpu_experts), least=0)
    most = max(0, free - int((experts or 0) * each))
    auto = settings.auto("context") and experts is None
    room = int(most * _CACHE_SHARE) if auto else most
    context = choose_context(settings, model, SGLANG_KT, room // per_token)
    requested = parse_int(args.get(SGLANG_KT.cache_tokens))
    tokens = min(most // per_token, requested or _count_cache_tokens(context, requests))
    if experts is None:
        experts = max(0, min(shape.experts, math.floor((free - tokens * per_token) / each)))
    kv = tokens * per_token if free > 0 else free
    return Budget(
        context=context,
        kv_bytes=kv,
        kv_bytes_per_token=per_token,
        kv_dtype=dtype,
        parts=_list_host_parts(host, catalogue, work),
        weights_total=model_bytes.count_checkpoint_bytes(shape, weights_format),
        gpu=GpuBudget(
            ranks=many,
            memory=memory,
            utilization=_GPU_SHARE,
            weights=plain + round(experts * each),
            replicated=model_bytes.count_replicated_bytes(shape),
            overhead=overhead,
            batched_tokens=chunk,
            sequences=requests,
            experts=experts,
        ),
    )


def make_document(choice: EngineChoice, budget: Budget, where: Placement) -> HybridPlan | None:
    """Make the plan's `hybrid`; None where no pools of kt-kernel work beside GPUs."""
    if not where.pools or budget.gpu is None:
        return None
    return {
        "method": (choice.engine.methods or {}).get(choice.weights_format),
        "threads": where.pool_threads,
        "pools": len(where.pools),
        "nodes": list(where.pools),
        "gpu_experts": budget.gpu.experts,
    }


def _choose_chunk(shape: Architecture, memory: int) -> int:
    room = memory * _CHUNK_SHARE
    return next((n for n in _CHUNKS if gpu.count_pass_bytes(shape, n) <= room), _CHUNKS[-1])


def _count_cache_tokens(context: int, requests: int) -> int:
    """Count tokens for one whole conversation, and part of one for each further request."""
    return context + (requests - 1) * min(context, 8 * CONTEXT_STEP)
