"""Memory of GPUs: vLLM with all weights on them, KTransformers with experts in host memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog.loader import Combination, number
from kimi_prov.planner.engine import sglang, speculative
from kimi_prov.planner.memory import architecture
from kimi_prov.planner.memory.cpu import CONTEXT_STEP, GIB, Budget, Graphics, Part, fitting_context

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.loader import Architecture, Catalogue, Engine, Model
    from kimi_prov.catalog.rows import Format
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.settings.parsing import Wishes

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
# Bytes that the sampler's warm-up takes for each entry of the vocabulary and each request.
_SAMPLER_BYTES = 32
# GPUs that tensor parallelism joins at most where fewer hold the model: one NVSwitch domain.
_NODE = 8
# kt-kernel holds every expert in memory; its GPU side needs this beside a layer that is staged.
_KT_GPU_OVERHEAD = round(2.75e9)
# Tokens of a long prompt that are computed at a time: where all layers are streamed for each such
# chunk, the most that leaves enough for experts; on the CPU the least, for others wait for each.
# The overhead above is with the least of them.
_KT_CHUNKS, _KT_CHUNK_SHARE = (16384, 8192, 4096), 0.05
# Share of what experts and cache may take together that the cache gets where nobody says.
_KT_CACHE_SHARE = 0.3


@dataclass(frozen=True)
class Profile:
    """How tightly vLLM is set: share of each GPU, tokens of one pass, requests at once at most."""

    utilization: float
    batched_tokens: int
    sequences: int | None = None


@dataclass(frozen=True)
class Layout:
    """How instances lie over GPUs; `context` ranks share the cache of each conversation."""

    tensor: int
    pipeline: int = 1
    data: int = 1
    context: int = 1
    instances: int = 1


def profiles(engine: Engine) -> tuple[Profile, Profile]:
    """Give the usual settings, and those that served 8x H100 80GB (reference 004)."""
    return Profile(engine.gpu_memory_utilization or 0.9, 8192), Profile(0.95, 2048, 64)


def pass_bytes(shape: Architecture, tokens: int) -> int:
    """Return what a pass of `tokens` takes: a token's experts and half a dozen rows, 16 bit."""
    expert = shape.expert_hidden or shape.hidden
    return 2 * tokens * (shape.experts_per_token * expert + 6 * shape.hidden)


def working_bytes(engine: Engine, shape: Architecture, tokens: int, sequences: int) -> int:
    """Return what vLLM measures on each GPU before it sizes the cache, weights aside.

    A pass of `tokens`, and the sampler for `sequences` requests: logits at 32 bit, sorted with
    their places, as shares, summed up and put back. The rest (CUDA, NCCL, graphs) is as the
    version was seen to take.
    """
    sampler = sequences * shape.vocab * _SAMPLER_BYTES
    return engine.gpu_overhead_bytes + pass_bytes(shape, tokens) + sampler


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
    return on_gpus(host, wishes, model, catalogue, work).kv_tokens_one >= _LEAST_CONTEXT


def on_gpus(
    host: Host, wishes: Wishes, model: Model, catalogue: Catalogue, work: tuple[Engine, str]
) -> Budget:
    """Share out the GPUs' memory for vLLM. `work`: the engine and the format of the weights.

    Tries the usual settings with a 16-bit cache, then tighter ones, then an 8-bit cache, until
    the context asked for fits.
    """
    engine, weights_format = work
    dtypes = _dtypes(host, wishes, model, engine, weights_format)
    wanted = int(wishes.context) if not wishes.auto("context") else _SHORT_CONTEXT
    enough = min(wanted, model.context)
    tried: list[Budget] = []
    for layout in layouts(host, model, catalogue, engine, wishes):
        # vLLM's context parallelism refuses an 8-bit cache.
        plain = [dtype for dtype in dtypes if dtype == "bf16"]
        for dtype in plain or dtypes if layout.context > 1 else dtypes:
            for profile in profiles(engine):
                found = _attempt(host, wishes, model, (catalogue, *work), (layout, profile, dtype))
                if found.kv_tokens_one >= enough:
                    return found
                tried.append(found)
    return max(tried, key=lambda found: found.kv_tokens_one)


def layouts(
    host: Host, model: Model, catalogue: Catalogue, engine: Engine, wishes: Wishes
) -> list[Layout]:
    """Give the ways to lie over the GPUs, the simplest first.

    Tensor parallelism over one NVSwitch domain; over all GPUs, where they are more; stages of
    layers, where their number is no power of two; context parallelism for a context that was asked
    for. What the inventory names is taken as it is, and once.
    """
    args = wishes.engine_args
    given = [whole(args.get(f"{name}-parallel-size")) for name in ("pipeline", "data")]
    context = whole(args.get("decode-context-parallel-size"))
    most = ranks(host, model, catalogue, engine, wishes)
    stages, copies = given[0] or 1, given[1] or 1
    if any(given) or "tensor-parallel-size" in args:
        if "tensor-parallel-size" not in args:
            most = max(1, min(most, _power(len(host.gpu_bytes) // (stages * copies))))
        return [Layout(most, stages, copies, context or 1)]
    gpus = len(host.gpu_bytes)
    sizes = dict.fromkeys((min(most, _NODE), most))
    found = [Layout(size, instances=max(1, gpus // size)) for size in sizes]
    found += _staged(most, gpus)
    if context:
        return [replace(layout, context=context) for layout in found]
    mla = model.architecture.attention == "mla" and not host.amd
    if mla and not wishes.auto("context") and wishes.kv_dtype != "fp8":
        found += [replace(layout, context=layout.tensor) for layout in found if layout.tensor > 1]
    return found


def _staged(most: int, gpus: int) -> list[Layout]:
    """Give stages of layers that use more GPUs than tensor parallelism alone."""
    ways = []
    size = most
    while size:
        if gpus // size > 1 and size * (gpus // size) > most:
            ways.append(Layout(size, gpus // size))
        size //= 2
    return ways


def _power(number: int) -> int:
    """Give the largest power of two that is not above a number."""
    return 1 << (number.bit_length() - 1) if number > 0 else 0


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
    way: tuple[Layout, Profile, str],
) -> Budget:
    catalogue, engine, weights_format = work
    layout, profile, dtype = way
    shape, args = model.architecture, wishes.engine_args
    share = _fraction(args.get("gpu-memory-utilization")) or profile.utilization
    batched = whole(args.get("max-num-batched-tokens")) or profile.batched_tokens
    engines = layout.instances * layout.data
    wanted = each(wishes, engines)
    sequences = whole(args.get("max-num-seqs")) or min(wanted, profile.sequences or wanted)
    draft = speculative.wanted(wishes, catalogue, engine)
    overhead = working_bytes(engine, shape, batched, sequences) + speculative.working_bytes(draft)
    memory = int(min(host.gpu_bytes) * _VISIBLE)
    weights = _weights(shape, weights_format, layout)
    weights += _redundant(args, shape, weights_format) // (layout.tensor * layout.data)
    weights += speculative.rank_bytes(draft, layout.tensor)
    kv = int(memory * share) - weights - overhead
    per_token = architecture.kv_bytes_per_token(shape, _BYTES[dtype], layout.tensor)
    per_token = _of_stage(per_token, shape, layout.pipeline)
    per_token += speculative.kv_bytes_per_token(draft, _BYTES[dtype], layout.tensor)
    expert = args.get("enable-expert-parallel")
    return Budget(
        context=fitting_context(wishes, model, max(0, kv) // per_token * layout.context),
        kv_bytes=kv,
        kv_bytes_per_token=per_token,
        kv_dtype=dtype,
        parts=(
            Part("overhead", "The engine's processes", engine.overhead_bytes * engines),
            *_moved_out(args),
            Part("system", "Left to the system", host.reserve_bytes),
        ),
        weights_total=architecture.checkpoint_bytes(shape, weights_format),
        graphics=Graphics(
            ranks=layout.tensor,
            memory=memory,
            utilization=share,
            weights=weights,
            replicated=architecture.replicated_bytes(shape),
            overhead=overhead,
            batched_tokens=batched,
            sequences=sequences,
            expert_parallel=layout.tensor * layout.data > 1
            and (layout.data > 1 or int(wishes.concurrency) >= _EXPERT_PARALLEL_FROM)
            if expert is None
            else bool(expert),
            decode_context=layout.context,
            pipeline=layout.pipeline,
            data=layout.data,
        ),
        instances=layout.instances,
    )


def each(wishes: Wishes, engines: int) -> int:
    """Return the requests at once that one of several engines has to take."""
    return -(-int(wishes.concurrency) // engines)


def _weights(shape: Architecture, weights_format: str, layout: Layout) -> int:
    """Return the bytes on each GPU: experts over all ranks, the rest over those of one copy."""
    own = architecture.plain_bytes(shape, weights_format, layout.tensor)
    every = round(architecture.expert_bytes(shape, weights_format) * shape.experts)
    size = own + every // (layout.tensor * layout.data)
    return _of_stage(size, shape, layout.pipeline)


def _of_stage(size: int, shape: Architecture, stages: int) -> int:
    """Return the share of the longest of `stages` runs of layers."""
    return -(-size * -(-shape.layers // stages) // shape.layers)


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

    On each GPU: what is not a routed expert, the cache, a whole layer where long prompts go over
    it layer by layer, working memory, and with the rest experts (kt issue 1817: 24.34 GB + cache
    + 1.486 GB each).
    """
    engine, weights_format = work
    shape, args = model.architecture, wishes.engine_args
    many = ranks(host, model, catalogue, engine, wishes)
    resident = resident_format(catalogue, engine, weights_format)
    per_weight = resident.expert_bytes if resident else 2.0
    routed = architecture.routed_params(shape)
    sparse = shape.layers - shape.dense_layers
    streams = sglang.prefill_from((engine.methods or {}).get(weights_format)) is not None
    memory = int(min(host.gpu_bytes) * _VISIBLE)
    plain = architecture.plain_bytes(shape, weights_format, many)
    each = architecture.expert_bytes(shape, weights_format) / many
    layer = round(each * shape.experts / sparse) if streams else 0
    proposed = _chunk(shape, memory) if streams else _KT_CHUNKS[-1]
    chunk = whole(args.get("chunked-prefill-size")) or proposed
    overhead = _KT_GPU_OVERHEAD + layer + pass_bytes(shape, max(0, chunk - _KT_CHUNKS[-1]))
    free = int(memory * 0.98) - plain - overhead
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
            overhead=overhead,
            batched_tokens=chunk,
            experts=experts,
        ),
    )


def _chunk(shape: Architecture, memory: int) -> int:
    room = memory * _KT_CHUNK_SHARE
    return next((n for n in _KT_CHUNKS if pass_bytes(shape, n) <= room), _KT_CHUNKS[-1])


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
