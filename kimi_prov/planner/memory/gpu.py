"""Memory of GPUs: vLLM with all weights on them, KTransformers with experts in host memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog.broken import Combination
from kimi_prov.catalog.versions import number
from kimi_prov.on_host.kt import quantise
from kimi_prov.planner.decisions import Budget, GpuBudget, Part, Workload
from kimi_prov.planner.engine import sglang, speculative
from kimi_prov.planner.engine.flag_names import SGLANG_KT, VLLM, fraction, kv_dtype, names, whole
from kimi_prov.planner.memory import architecture
from kimi_prov.planner.memory.cpu import CONTEXT_STEP, GIB, fitting_context

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.engines import Engine
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.models import Architecture, Format
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.settings.parsing import Settings

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
# Share of a GPU's memory that all of it may take together.
_KT_SHARE = 0.98
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
    """Give the usual profile, and the one that served 8x H100 80GB (reference 004)."""
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


def ranks(host: Host, settings: Settings, catalogue: Catalogue, work: Workload) -> int:
    """Give the GPUs that share one model: the most, in powers of two, that divide its parts."""
    given = whole(settings.engine_args.get(names(work.engine.name).tensor_parallel))
    if given is not None:
        return given
    shape = work.model.architecture
    found = 1
    while (
        found * 2 <= len(host.gpu_bytes)
        and shape.heads % (found * 2) == 0
        and shape.expert_width % (found * 2) == 0
        and not _broken_above(found * 2, catalogue, work)
    ):
        found *= 2
    return found


def _broken_above(ranks: int, catalogue: Catalogue, work: Workload) -> bool:
    """Whether so many ranks are known to answer wrongly where fewer are well."""
    engine, model = work.engine, work.model
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


def fits(found: Budget) -> bool:
    """Whether the GPUs hold all weights and a short conversation.

    A longer one that was asked for and does not fit is a finding, not a reason for a slower engine.
    """
    return found.kv_tokens_one >= _LEAST_CONTEXT


def on_gpus(host: Host, settings: Settings, catalogue: Catalogue, work: Workload) -> Budget:
    """Share out the GPUs' memory for vLLM.

    Tries the usual profile with a 16-bit cache, then the tight one, then an 8-bit cache, until
    the context asked for fits.
    """
    dtypes = _dtypes(host, settings, work)
    wanted = int(settings.context) if not settings.auto("context") else _SHORT_CONTEXT
    enough = min(wanted, work.model.context)
    tried: list[Budget] = []
    for layout in layouts(host, settings, catalogue, work):
        # vLLM's context parallelism refuses an 8-bit cache.
        plain = [dtype for dtype in dtypes if dtype == "bf16"]
        for dtype in plain or dtypes if layout.context > 1 else dtypes:
            for profile in profiles(work.engine):
                found = _attempt(host, settings, catalogue, work, layout, profile, dtype)
                if found.kv_tokens_one >= enough:
                    return found
                tried.append(found)
    return max(tried, key=lambda found: found.kv_tokens_one)


def layouts(host: Host, settings: Settings, catalogue: Catalogue, work: Workload) -> list[Layout]:
    """Give the ways to lie over the GPUs, the simplest first.

    Tensor parallelism over one NVSwitch domain; over all GPUs, where they are more; stages of
    layers, where their number is no power of two; context parallelism for a context that was asked
    for. What the inventory names is taken as it is, and once.
    """
    args = settings.engine_args
    given = [whole(args.get(name)) for name in (VLLM.pipeline_parallel, VLLM.data_parallel)]
    context = whole(args.get(VLLM.decode_context_parallel))
    most = ranks(host, settings, catalogue, work)
    stages, copies = given[0] or 1, given[1] or 1
    if any(given) or VLLM.tensor_parallel in args:
        if VLLM.tensor_parallel not in args:
            most = max(1, min(most, _power(len(host.gpu_bytes) // (stages * copies))))
        return [Layout(most, stages, copies, context or 1)]
    gpus = len(host.gpu_bytes)
    sizes = dict.fromkeys((min(most, _NODE), most))
    found = [Layout(size, instances=max(1, gpus // size)) for size in sizes]
    found += _staged(most, gpus)
    if context:
        return [replace(layout, context=context) for layout in found]
    mla = work.model.architecture.attention == "mla" and not host.amd
    if mla and not settings.auto("context") and settings.kv_dtype != "fp8":
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


def _dtypes(host: Host, settings: Settings, work: Workload) -> list[str]:
    given = kv_dtype(settings.engine_args.get(VLLM.kv_dtype))
    if given is not None:
        return [given]
    if not settings.auto("kv_dtype"):
        return [str(settings.kv_dtype)]
    row = next((r for r in work.model.published if r.format == work.weights_format), None)
    if row is not None and row.kv_dtype in _BYTES:
        return [row.kv_dtype]
    return ["bf16", "fp8"] if fp8_cache(host, work.engine) else ["bf16"]


def _attempt(
    host: Host,
    settings: Settings,
    catalogue: Catalogue,
    work: Workload,
    layout: Layout,
    profile: Profile,
    dtype: str,
) -> Budget:
    engine, model, weights_format = work.engine, work.model, work.weights_format
    shape, args = model.architecture, settings.engine_args
    share = fraction(args.get(VLLM.gpu_share)) or profile.utilization
    batched = whole(args.get(VLLM.chunk)) or profile.batched_tokens
    engines = layout.instances * layout.data
    wanted = each(settings, engines)
    sequences = whole(args.get(VLLM.requests)) or min(wanted, profile.sequences or wanted)
    draft = speculative.wanted(settings, catalogue, engine)
    overhead = working_bytes(engine, shape, batched, sequences) + speculative.working_bytes(draft)
    memory = int(min(host.gpu_bytes) * _VISIBLE)
    weights = _weights(shape, weights_format, layout)
    weights += _redundant(args, shape, weights_format) // (layout.tensor * layout.data)
    weights += speculative.rank_bytes(draft, layout.tensor)
    kv = int(memory * share) - weights - overhead
    per_token = architecture.kv_bytes_per_token(shape, _BYTES[dtype], layout.tensor)
    per_token = _of_stage(per_token, shape, layout.pipeline)
    per_token += speculative.kv_bytes_per_token(draft, _BYTES[dtype], layout.tensor)
    expert = args.get(VLLM.expert_parallel)
    return Budget(
        context=fitting_context(settings, model, VLLM, max(0, kv) // per_token * layout.context),
        kv_bytes=kv,
        kv_bytes_per_token=per_token,
        kv_dtype=dtype,
        parts=(
            Part("overhead", "The engine's processes", engine.overhead_bytes * engines),
            *_moved_out(args),
            Part("system", "Left to the system", host.reserve_bytes),
        ),
        weights_total=architecture.checkpoint_bytes(shape, weights_format),
        gpu=GpuBudget(
            ranks=layout.tensor,
            memory=memory,
            utilization=share,
            weights=weights,
            replicated=architecture.replicated_bytes(shape),
            overhead=overhead,
            batched_tokens=batched,
            sequences=sequences,
            expert_parallel=layout.tensor * layout.data > 1
            and (layout.data > 1 or settings.concurrency >= _EXPERT_PARALLEL_FROM)
            if expert is None
            else bool(expert),
            decode_context=layout.context,
            pipeline=layout.pipeline,
            data=layout.data,
        ),
        instances=layout.instances,
    )


def each(settings: Settings, engines: int) -> int:
    """Return the requests at once that one of several engines has to take."""
    return -(-settings.concurrency // engines)


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
    config = args.get(VLLM.expert_balancing_config)
    copies = whole(config.get("num_redundant_experts")) if isinstance(config, dict) else None
    if not args.get(VLLM.expert_balancing) or not copies:
        return 0
    return round(copies * architecture.expert_bytes(shape, weights_format))


def _moved_out(args: Mapping[str, Any]) -> tuple[Part, ...]:
    """Host memory that the cache moves out to: `kv-offloading-size`, in GiB for all ranks."""
    size = args.get(VLLM.cache_offloading)
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size < 1 << 20:
        return ()
    return (Part("cache", "Cache moved out of the GPUs", round(size * GIB)),)


def resident_format(catalogue: Catalogue, engine: Engine, weights_format: str) -> Format | None:
    """Give the form in which kt-kernel keeps experts of these weights; None where it has none."""
    method = (engine.methods or {}).get(weights_format)
    rows = [row for row in catalogue.formats if row.kind == "resident" and row.kt_method == method]
    return rows[0] if method and rows else None


def hybrid(host: Host, settings: Settings, catalogue: Catalogue, work: Workload) -> Budget:
    """Share out memory for KTransformers: all experts in RAM, as many as fit on GPUs as well.

    On each GPU: what is not a routed expert, the cache, a whole layer where long prompts go over
    it layer by layer, working memory, and with the rest experts (kt issue 1817: 24.34 GB + cache
    + 1.486 GB each).
    """
    engine, model, weights_format = work.engine, work.model, work.weights_format
    shape, args = model.architecture, settings.engine_args
    many = ranks(host, settings, catalogue, work)
    resident = resident_format(catalogue, engine, weights_format)
    per_weight = resident.expert_bytes if resident else 2.0
    routed = architecture.routed_params(shape)
    sparse = shape.layers - shape.dense_layers
    method = (engine.methods or {}).get(weights_format)
    streams = sglang.prefill_from(method) is not None
    # Converted experts are read as they lie in memory, others as they lie in the checkpoint.
    converted = method in quantise.KERNELS
    read = per_weight if converted else catalogue.format(weights_format).expert_bytes
    memory = int(min(host.gpu_bytes) * _VISIBLE)
    plain = architecture.plain_bytes(shape, weights_format, many)
    each = architecture.expert_bytes(shape, weights_format) / many
    layer = round(each * shape.experts / sparse) if streams else 0
    proposed = _chunk(shape, memory) if streams else _KT_CHUNKS[-1]
    chunk = whole(args.get(SGLANG_KT.chunk)) or proposed
    overhead = _KT_GPU_OVERHEAD + layer + pass_bytes(shape, max(0, chunk - _KT_CHUNKS[-1]))
    free = int(memory * _KT_SHARE) - plain - overhead
    share = fraction(args.get(SGLANG_KT.gpu_share))
    if share is not None:
        free = min(free, int(memory * share) - plain)
    own_dtype = "bf16" if settings.auto("kv_dtype") else str(settings.kv_dtype)
    dtype = kv_dtype(args.get(SGLANG_KT.kv_dtype)) or own_dtype
    per_token = architecture.kv_bytes_per_token(shape, _BYTES[dtype], many)
    requests = whole(args.get(SGLANG_KT.requests)) or settings.concurrency
    experts = whole(args.get(SGLANG_KT.gpu_experts), least=0)
    most = max(0, free - int((experts or 0) * each))
    auto = settings.auto("context") and experts is None
    room = int(most * _KT_CACHE_SHARE) if auto else most
    context = fitting_context(settings, model, SGLANG_KT, room // per_token)
    wanted = whole(args.get(SGLANG_KT.cache_tokens)) or _tokens(context, requests)
    tokens = min(most // per_token, wanted)
    if experts is None:
        experts = max(0, min(shape.experts, math.floor((free - tokens * per_token) / each)))
    kv = tokens * per_token if free > 0 else free
    parts = (
        Part("weights", "Experts in host memory", round(routed * per_weight)),
        # A layer is held once more while it is loaded, or staged for the GPU.
        Part(
            "overhead",
            "Staging and the engine's processes",
            engine.overhead_bytes + round(routed / sparse * read),
        ),
        Part("system", "Left to the system", host.reserve_bytes),
    )
    return Budget(
        context=context,
        kv_bytes=kv,
        kv_bytes_per_token=per_token,
        kv_dtype=dtype,
        parts=parts,
        weights_total=architecture.checkpoint_bytes(shape, weights_format),
        gpu=GpuBudget(
            ranks=many,
            memory=memory,
            utilization=_KT_SHARE,
            weights=plain + round(experts * each),
            replicated=architecture.replicated_bytes(shape),
            overhead=overhead,
            batched_tokens=chunk,
            sequences=requests,
            experts=experts,
        ),
    )


def _chunk(shape: Architecture, memory: int) -> int:
    room = memory * _KT_CHUNK_SHARE
    return next((n for n in _KT_CHUNKS if pass_bytes(shape, n) <= room), _KT_CHUNKS[-1])


def _tokens(context: int, requests: int) -> int:
    """Cache for one whole conversation, and a share of one for each further request."""
    return context + (requests - 1) * min(context, 8 * CONTEXT_STEP)
