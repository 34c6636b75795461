"""Memory of GPUs: vLLM with all weights on them, KTransformers with experts in host memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog.loader import Combination, number
from kimi_prov.planner import architecture, speculative
from kimi_prov.planner.memory import CONTEXT_STEP, GIB, Budget, Graphics, Part, fitting_context

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.loader import Architecture, Catalogue, Engine, Model
    from kimi_prov.catalog.rows import Format
    from kimi_prov.planner.host import Host
    from kimi_prov.planner.wishes import Wishes

# Of the memory that nvidia-smi shows, CUDA shows this share (79.18 of 79.65 GiB on H100).
_VISIBLE = 0.994
# Enough requests at once that experts are better kept whole than cut in slices.
_EXPERT_PARALLEL_FROM = 32
# What a short conversation with a reasoning model needs at least.
_LEAST_CONTEXT = 4096
# Below this, an 8-bit cache is worth more than a 16-bit one.
_SHORT_CONTEXT = 32768
_FP8_CAPABILITY = (9, 0)
_FP8_SINCE = "0.17.0"
_BYTES = {"bf16": 2, "fp8": 1}
_BYTES_PER_BATCHED_TOKEN = 440_000
# kt-kernel holds every expert in memory, stages a layer, and its GPU side needs this beside.
_KT_GPU_OVERHEAD = round(2.75e9)
# Share of what experts and cache may take together that the cache gets where nobody says.
_KT_CACHE_SHARE = 0.3


@dataclass(frozen=True)
class Profile:
    """How tightly vLLM is set: share of each GPU, working memory, tokens of one pass."""

    utilization: float
    overhead: int
    batched_tokens: int


def profiles(engine: Engine) -> tuple[Profile, Profile]:
    """Give the usual settings, and those that served 8x H100 80GB (reference 004)."""
    usual = Profile(engine.gpu_memory_utilization or 0.9, engine.gpu_overhead_bytes, 8192)
    return usual, Profile(0.95, int(2.56 * GIB), 2048)


def ranks(host: Host, model: Model, catalogue: Catalogue, engine: Engine, wishes: Wishes) -> int:
    """Give the GPUs that share one model: the most, in powers of two, that divide its parts."""
    given = wishes.engine_args.get("tensor-parallel-size")
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return int(given)
    shape = model.architecture
    found = 1
    while (
        found * 2 <= len(host.gpu_bytes)
        and shape.heads % (found * 2) == 0
        and shape.expert_width % (found * 2) == 0
        and not _broken_above(found * 2, model, catalogue, engine)
    ):
        found *= 2
    return found


def _broken_above(ranks: int, model: Model, catalogue: Catalogue, engine: Engine) -> bool:
    """Whether so many ranks are known to answer wrongly where fewer are well."""
    given = Combination(
        engine=engine.name,
        variant=engine.variant,
        version=engine.version,
        model=model.name,
        weights_format=model.native_format,
        tensor_parallel=ranks,
    )
    hits = catalogue.broken_with(given)
    return any(row.tensor_parallel_above and row.severity == "blocker" for row in hits)


def fp8_cache(host: Host, engine: Engine) -> bool:
    """Whether the engine keeps an 8-bit cache on these GPUs, chunked prefill beside it."""
    capability = number(host.capability or "0")
    return capability >= _FP8_CAPABILITY and number(engine.version) >= number(_FP8_SINCE)


def fits(
    host: Host, wishes: Wishes, model: Model, catalogue: Catalogue, work: tuple[Engine, str]
) -> bool:
    """Whether the GPUs hold all weights and a short conversation.

    A longer one that was asked for and does not fit is a finding, not a reason for a slower engine.
    """
    return on_gpus(host, wishes, model, catalogue, work).kv_tokens >= _LEAST_CONTEXT


def on_gpus(
    host: Host, wishes: Wishes, model: Model, catalogue: Catalogue, work: tuple[Engine, str]
) -> Budget:
    """Share out the GPUs' memory for vLLM. `work`: the engine and the format of the weights.

    Tries the usual settings with a 16-bit cache, then tighter ones, then an 8-bit cache, until
    the context asked for fits.
    """
    engine, weights_format = work
    tried = [
        _attempt(host, wishes, model, (catalogue, *work), (profile, dtype))
        for dtype in _dtypes(host, wishes, model, engine, weights_format)
        for profile in profiles(engine)
    ]
    wanted = int(wishes.context) if not wishes.auto("context") else _SHORT_CONTEXT
    enough = min(wanted, model.context)
    for found in tried:
        if found.kv_tokens >= enough:
            return found
    return max(tried, key=lambda found: found.kv_tokens)


def _dtypes(
    host: Host, wishes: Wishes, model: Model, engine: Engine, weights_format: str
) -> list[str]:
    given = wishes.engine_args.get("kv-cache-dtype")
    if given in ("fp8", "fp8_e4m3"):
        return ["fp8"]
    if given is not None:
        return ["bf16"]
    if not wishes.auto("kv_dtype"):
        return [str(wishes.kv_dtype)]
    row = next((r for r in model.published if r.format == weights_format), None)
    if row is not None and row.kv_dtype in _BYTES:
        return [row.kv_dtype]
    return ["bf16", "fp8"] if fp8_cache(host, engine) else ["bf16"]


def _attempt(
    host: Host,
    wishes: Wishes,
    model: Model,
    work: tuple[Catalogue, Engine, str],
    way: tuple[Profile, str],
) -> Budget:
    catalogue, engine, weights_format = work
    profile, dtype = way
    shape, args = model.architecture, wishes.engine_args
    many = ranks(host, model, catalogue, engine, wishes)
    spread = whole(args.get("decode-context-parallel-size")) or 1
    share = _fraction(args.get("gpu-memory-utilization")) or profile.utilization
    memory = int(min(host.gpu_bytes) * _VISIBLE)
    stages = whole(args.get("pipeline-parallel-size")) or 1
    draft = speculative.wanted(wishes, catalogue, engine)
    weights = architecture.rank_bytes(shape, weights_format, many) // stages
    weights += _redundant(args, shape, weights_format) // many
    weights += speculative.rank_bytes(draft, many)
    batched = whole(args.get("max-num-batched-tokens")) or profile.batched_tokens
    overhead = _working_memory(profile, batched, engine)
    kv = int(memory * share) - weights - overhead
    per_token = -(-architecture.kv_bytes_per_token(shape, _BYTES[dtype], many) // stages)
    per_token += speculative.kv_bytes_per_token(draft, _BYTES[dtype], many)
    tokens = max(0, kv) // per_token * spread
    expert = args.get("enable-expert-parallel")
    return Budget(
        context=fitting_context(wishes, model, tokens),
        kv_bytes=kv,
        kv_bytes_per_token=per_token,
        kv_dtype=dtype,
        parts=(
            Part("overhead", "The engine's processes", engine.overhead_bytes),
            *_moved_out(args),
            Part("system", "Left to the system", host.reserve_bytes),
        ),
        weights_total=architecture.checkpoint_bytes(shape, weights_format),
        graphics=Graphics(
            ranks=many,
            memory=memory,
            utilization=share,
            weights=weights,
            replicated=architecture.replicated_bytes(shape),
            overhead=overhead,
            batched_tokens=batched,
            expert_parallel=many > 1 and int(wishes.concurrency) >= _EXPERT_PARALLEL_FROM
            if expert is None
            else bool(expert),
            decode_context=spread,
            pipeline=stages,
        ),
    )


def _working_memory(profile: Profile, batched: int, engine: Engine) -> int:
    """Return the working memory for passes of `batched` tokens, in bytes.

    Longer passes than the profile's take more, up to what the usual settings take: 2.56 GiB at
    2,048 tokens (reference 004), about 3.4 GiB at 4,096 (reference 001: 0.86 GiB left of 75.2).
    """
    more = max(0, batched - profile.batched_tokens) * _BYTES_PER_BATCHED_TOKEN
    return max(profile.overhead, min(profile.overhead + more, engine.gpu_overhead_bytes))


def _redundant(args: Mapping[str, Any], shape: Architecture, weights_format: str) -> int:
    """Return the bytes of the copies of experts that EPLB keeps beside the originals."""
    config = args.get("eplb-config")
    copies = whole(config.get("num_redundant_experts")) if isinstance(config, dict) else None
    if not args.get("enable-eplb") or not copies:
        return 0
    return round(copies * architecture.expert_bytes(shape, weights_format))


def _moved_out(args: Mapping[str, Any]) -> tuple[Part, ...]:
    """Host memory that the cache moves out to: `kv-offloading-size`, in GiB for all ranks."""
    size = args.get("kv-offloading-size")
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size < 1 << 20:
        return ()
    return (Part("cache", "Cache moved out of the GPUs", round(size * GIB)),)


def resident_format(catalogue: Catalogue, engine: Engine, weights_format: str) -> Format | None:
    """Give the form in which kt-kernel keeps experts of these weights; None where it has none."""
    method = (engine.methods or {}).get(weights_format)
    rows = [row for row in catalogue.formats if row.kind == "resident" and row.kt_method == method]
    return rows[0] if method and rows else None


def hybrid(
    host: Host, wishes: Wishes, model: Model, catalogue: Catalogue, work: tuple[Engine, str]
) -> Budget:
    """Share out memory for KTransformers: all experts in RAM, as many as fit on GPUs as well.

    On each GPU: what is not a routed expert, the cache, whole layers in turn for long prompts,
    working memory, and with the rest experts (kt issue 1817: 24.34 GB + cache + 1.486 GB each).
    """
    engine, weights_format = work
    shape, args = model.architecture, wishes.engine_args
    many = ranks(host, model, catalogue, engine, wishes)
    resident = resident_format(catalogue, engine, weights_format)
    per_weight = resident.expert_bytes if resident else 2.0
    routed = architecture.routed_params(shape)
    sparse = shape.layers - shape.dense_layers
    memory = int(min(host.gpu_bytes) * _VISIBLE)
    plain = architecture.plain_bytes(shape, weights_format, many)
    each = architecture.expert_bytes(shape, weights_format) / many
    layer = round(each * shape.experts / sparse)
    free = int(memory * 0.98) - plain - _KT_GPU_OVERHEAD - layer
    dtype = "bf16" if wishes.auto("kv_dtype") else str(wishes.kv_dtype)
    per_token = architecture.kv_bytes_per_token(shape, _BYTES[dtype], many)
    asked = whole(args.get("kt-num-gpu-experts"))
    if asked is None:
        room = free if not wishes.auto("context") else int(free * _KT_CACHE_SHARE)
        context = fitting_context(wishes, model, max(0, room) // per_token)
        tokens = min(max(0, free) // per_token, _tokens(context, wishes))
        experts = max(0, min(shape.experts, math.floor((free - tokens * per_token) / each)))
    else:
        experts = asked
        context = fitting_context(wishes, model, max(0, free - int(asked * each)) // per_token)
        tokens = min(max(0, free - int(asked * each)) // per_token, _tokens(context, wishes))
    kv = tokens * per_token if free > 0 else free
    parts = (
        Part("weights", "Experts in host memory", round(routed * per_weight)),
        Part("overhead", "Staging and the engine's processes", engine.overhead_bytes),
        Part("system", "Left to the system", host.reserve_bytes),
    )
    return Budget(
        context=context,
        kv_bytes=kv,
        kv_bytes_per_token=per_token,
        kv_dtype=dtype,
        parts=parts,
        weights_total=architecture.checkpoint_bytes(shape, weights_format),
        graphics=Graphics(
            ranks=many,
            memory=memory,
            utilization=0.98,
            weights=plain + round(experts * each),
            replicated=architecture.replicated_bytes(shape),
            overhead=_KT_GPU_OVERHEAD + layer,
            batched_tokens=4096,
            experts=experts,
        ),
    )


def _tokens(context: int, wishes: Wishes) -> int:
    """Cache for one whole conversation, and a share of one for each further request."""
    others = max(0, int(wishes.concurrency) - 1)
    return context + others * min(context, 8 * CONTEXT_STEP)


def whole(value: object) -> int | None:
    """Give a positive whole number; None for anything else that an inventory may hold."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _fraction(value: object) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    return None
