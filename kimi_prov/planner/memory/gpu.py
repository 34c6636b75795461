"""Memory of GPUs for vLLM: weights, cache and working memory, all on them.

Decides: the memory budget (of vLLM on GPUs).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kimi_prov.catalog import model_bytes
from kimi_prov.catalog.versions import parse_version
from kimi_prov.planner.decisions import GIB, Budget, GpuBudget, MemoryPart, Stage, Workload
from kimi_prov.planner.engine import speculative
from kimi_prov.planner.engine.vllm import find_graphs_off_flag
from kimi_prov.planner.memory import layouts
from kimi_prov.planner.memory.context import choose_context
from kimi_prov.planner.memory.stages import (
    count_experts_bytes,
    count_plain_bytes,
    count_stage_share,
    cut_stages,
)
from kimi_prov.planner.settings.flag_names import (
    COPIES,
    VLLM,
    parse_gib,
    parse_int,
    parse_kv_dtype,
    parse_share,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.engines import Engine
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.models import Architecture, Draft, Model
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.settings.parsing import Settings

# Of the memory that nvidia-smi shows, CUDA shows this share (79.18 of 79.65 GiB on H100).
VISIBLE_SHARE = 0.994
# Bytes of one value of the cache.
KV_BYTES = {"bf16": 2, "fp8": 1}
# From so many requests at once, whole experts on each GPU are faster than slices of all.
_EXPERT_PARALLEL_FROM = 32
# Tokens that a short conversation with a reasoning model needs.
_MIN_CONTEXT = 4096
# A shorter context than this is a reason to choose an 8-bit cache instead of a 16-bit one.
_SHORT_CONTEXT = 32768
_FP8_CAPABILITY = (9, 0)
_FP8_SINCE = "0.17.0"
# Bytes that the sampler's warm-up takes for each entry of the vocabulary and each request.
_SAMPLER_BYTES = 32
# Requests at once of one engine: vLLM's own default on GPUs of 70 GiB and more except A100
# (EngineArgs.get_batch_defaults, 0.19.1 to 0.32.0). For 10,000 requests the sampler would take
# 49 GiB of each GPU, which the cache then lacks.
MAX_SEQUENCES = 1024
# vLLM distributes requests over its data-parallel engines by loads that are 0.1 s old, so that an
# engine may get more than its even share. A request beyond max-num-seqs waits for a whole answer.
_UNEVEN_FACTOR = 2


@dataclass(frozen=True)
class Profile:
    """How tightly vLLM fills a GPU: share of its memory, tokens of a pass, requests at most."""

    utilization: float
    batched_tokens: int
    sequences: int | None = None


class _Load(NamedTuple):
    """A layout with the bytes of weights on each GPU of its stages, a draft's included."""

    layout: layouts.Layout
    draft: Draft | None
    stages: list[tuple[Stage, int]]


def list_profiles(engine: Engine) -> tuple[Profile, Profile]:
    """Give the usual profile, and the one that served 8x H100 80GB (reference 004)."""
    return Profile(engine.gpu_memory_utilization or 0.9, 8192), Profile(0.95, 2048, 64)


def count_pass_bytes(shape: Architecture, tokens: int) -> int:
    """Return the bytes of a pass: for each token its experts and half a dozen rows, 16 bit."""
    expert = shape.expert_hidden or shape.hidden
    return 2 * tokens * (shape.experts_per_token * expert + 6 * shape.hidden)


def count_working_bytes(
    engine: Engine, shape: Architecture, tokens: int, sequences: int, *, graphs: bool
) -> int:
    """Return the bytes that vLLM finds used on each GPU, weights aside, when it sizes the cache.

    They are a pass of `tokens` and the sampler for `sequences` requests: logits at 32 bit, sorted
    logits with their indices, probabilities, cumulative sums, and logits in their first order. The
    rest (CUDA, NCCL, and CUDA `graphs` where they are on) was measured with the version.
    """
    sampler = sequences * shape.vocab * _SAMPLER_BYTES
    rest = engine.gpu_overhead_bytes - (0 if graphs else engine.gpu_graphs_bytes)
    return rest + count_pass_bytes(shape, tokens) + sampler


def count_gathered_bytes(shape: Architecture, tokens: int, slices: int) -> int:
    """Return the bytes on a GPU for `tokens` of other data-parallel engines that use its experts.

    They are both workspaces of vLLM 0.25.1 (MarlinExperts.workspace_shapes), 16 bit. For each
    expert of a token, one row has the larger of the expert's input and its own width, the other
    the larger of the input and twice its own width (gate and up). The own width is divided by
    `slices`. Other kernels and versions are counted in the same way.
    """
    seen, width = shape.expert_hidden or shape.hidden, shape.expert_width // slices
    row = max(seen, width) + max(seen, 2 * width)
    return 2 * tokens * shape.experts_per_token * row


def has_fp8_cache(host: Host, engine: Engine) -> bool:
    """Whether the engine can keep an 8-bit cache on these GPUs together with chunked prefill."""
    capability = parse_version(host.capability or "0")
    return capability >= _FP8_CAPABILITY and parse_version(engine.version) >= parse_version(
        _FP8_SINCE
    )


def has_room(budget: Budget) -> bool:
    """Whether the GPUs hold all weights and a short conversation.

    A longer context that is set and does not fit is a finding, no reason for a slower engine.
    """
    return budget.kv_tokens_one >= _MIN_CONTEXT


def make_budget(host: Host, settings: Settings, catalogue: Catalogue, work: Workload) -> Budget:
    """Share out the GPUs' memory by the simplest layout that holds the context."""
    return select_able(list_budgets(host, settings, catalogue, work), settings, work.model)[0]


def list_budgets(
    host: Host, settings: Settings, catalogue: Catalogue, work: Workload
) -> list[Budget]:
    """List how the GPUs' memory may be shared out: by each layout, cache format and profile.

    The simplest is first: a 16-bit cache before an 8-bit one, the usual profile before the tight
    one, as many requests at once as are asked for before fewer, which leave room for the cache.
    """
    draft = speculative.find_draft(settings, catalogue, work.engine)
    named = VLLM.decode_context_parallel in settings.engine_args
    loads = [
        _Load(layout, draft, _weigh_stages(work, layout, draft, settings.engine_args))
        for layout in layouts.list_layouts(host, settings, catalogue, work)
    ]
    budgets: list[Budget] = []
    for dtype in _list_cache_dtypes(host, settings, work):
        for load in loads:
            # vLLM 0.19.1 refuses to share an 8-bit cache; later versions were not tried.
            refused = load.layout.context > 1 and dtype == "fp8" and not named
            hopeless = max(size for _, size in load.stages) >= min(host.gpu_bytes)
            if budgets and (refused or hopeless):
                continue
            for profile in list_profiles(work.engine):
                budgets += _list_sequences(host, settings, work, load, profile, dtype)
    return budgets


def _list_sequences(
    host: Host, settings: Settings, work: Workload, load: _Load, profile: Profile, dtype: str
) -> list[Budget]:
    """List the budgets with as many requests at once as are asked for, and as the cache holds.

    The sampler takes memory for each request, which the cache then lacks: with fewer of them it
    holds more, so the number is followed until it is that of a budget before.
    """
    first = _try_budget(host, settings, work, load, profile, dtype)
    most = first.gpu.sequences if first.gpu else 1
    hopeless = first.kv_bytes < -most * work.model.architecture.vocab * _SAMPLER_BYTES
    if hopeless or VLLM.requests in settings.engine_args:
        return [first]
    budgets = {most: first}
    held = _count_held(first, settings)
    while (fits := max(1, min(most, held))) not in budgets:
        fewer = replace(profile, sequences=fits)
        budgets[fits] = _try_budget(host, settings, work, load, fewer, dtype)
        held = _count_held(budgets[fits], settings)
    return list(budgets.values())


def _count_held(budget: Budget, settings: Settings) -> int:
    """Count the requests that an engine's cache holds at once."""
    return budget.kv_tokens_one // min(budget.context, settings.request_tokens)


def select_able(budgets: list[Budget], settings: Settings, model: Model) -> list[Budget]:
    """Select the budgets that hold the context: of one cache format, the first that any has.

    A context that the planner chooses is at least a short one. Where no layout holds enough, it is
    the one that holds most.
    """
    least = count_least_tokens(settings, model)
    able = [row for row in budgets if row.kv_tokens_one >= least]
    if able:
        return [budget for budget in able if budget.kv_dtype == able[0].kv_dtype]
    return [max(budgets, key=lambda budget: budget.kv_tokens_one)]


def count_least_tokens(settings: Settings, model: Model) -> int:
    """Return the tokens of one conversation that a layout has to hold to be chosen."""
    tokens = _SHORT_CONTEXT if settings.auto("context") else int(settings.context)
    return min(tokens, model.context)


def _list_cache_dtypes(host: Host, settings: Settings, work: Workload) -> list[str]:
    requested = parse_kv_dtype(settings.engine_args.get(VLLM.kv_dtype))
    if requested is not None:
        return [requested]
    if not settings.auto("kv_dtype"):
        return [str(settings.kv_dtype)]
    row = next((r for r in work.model.published if r.format == work.weights_format), None)
    if row is not None and row.kv_dtype in KV_BYTES:
        return [row.kv_dtype]
    return ["bf16", "fp8"] if has_fp8_cache(host, work.engine) else ["bf16"]


def _count_overhead(
    settings: Settings, work: Workload, layout: layouts.Layout, batched: int, sequences: int
) -> int:
    """Count the bytes of a pass on each GPU, and of the tokens that it gathers from others."""
    shape, args = work.model.architecture, settings.engine_args
    graphs = find_graphs_off_flag(args) is None
    slices = 1 if _is_expert_parallel(settings, layout) else layout.tensor * layout.data
    return count_working_bytes(
        work.engine, shape, batched, sequences, graphs=graphs
    ) + count_gathered_bytes(shape, (layout.data - 1) * batched, slices)


def _list_host_parts(
    host: Host, engine_bytes: int, engines: int, args: Mapping[str, Any]
) -> tuple[MemoryPart, ...]:
    """List the parts of host memory: the engine's processes, offloaded cache, the system."""
    return (
        MemoryPart("overhead", "The engine's processes", engine_bytes * engines),
        *_list_offloaded_cache(args, engines),
        MemoryPart("system", "Left to the system", host.reserve_bytes),
    )


def _try_budget(
    host: Host, settings: Settings, work: Workload, load: _Load, profile: Profile, dtype: str
) -> Budget:
    engine, model, (layout, draft, _) = work.engine, work.model, load
    shape, args = model.architecture, settings.engine_args
    share = parse_share(args.get(VLLM.gpu_share)) or profile.utilization
    batched = parse_int(args.get(VLLM.chunk)) or profile.batched_tokens
    engines = layout.instances * layout.data
    even, requested = divide_requests(settings, engines), parse_int(args.get(VLLM.requests))
    sequences = requested or _choose_max_sequences(even, settings, layout, profile, batched)
    # Where one engine has more than its even share, the others have less.
    running = requested or min(even, sequences)
    overhead = _count_overhead(settings, work, layout, batched, sequences)
    overhead += speculative.count_working_bytes(draft)
    memory = int(min(host.gpu_bytes) * VISIBLE_SHARE)
    states = running * model_bytes.count_state_bytes(shape, layout.tensor)
    token = model_bytes.count_kv_bytes_per_token(shape, KV_BYTES[dtype], layout.tensor)
    token_of_draft = speculative.count_kv_bytes_per_token(draft, KV_BYTES[dtype], layout.tensor)
    stages = []
    for stage, weights in load.stages:
        taken = overhead + count_stage_share(states, shape, stage)
        per_token = count_stage_share(token, shape, stage) + token_of_draft
        stages.append((int(memory * share) - weights - taken, per_token, weights, taken, stage))
    # All stages cache the same tokens: as many as the stage with the least room holds.
    kv, per_token, weights, overhead, stage = min(
        stages, key=lambda row: (max(0, row[0]) // row[1], row[0])
    )
    return Budget(
        context=choose_context(settings, model, VLLM, max(0, kv) // per_token * layout.context),
        kv_bytes=kv,
        kv_bytes_per_token=per_token,
        kv_dtype=dtype,
        parts=_list_host_parts(host, engine.overhead_bytes, engines, args),
        weights_total=model_bytes.count_checkpoint_bytes(shape, work.weights_format),
        gpu=GpuBudget(
            ranks=layout.tensor,
            memory=memory,
            utilization=share,
            weights=weights,
            replicated=model_bytes.count_replicated_bytes(shape),
            overhead=overhead,
            batched_tokens=batched,
            sequences=sequences,
            expert_parallel=_is_expert_parallel(settings, layout),
            decode_context=layout.context,
            pipeline=layout.pipeline,
            data=layout.data,
            stage=stage,
        ),
        instances=layout.instances,
    )


def _is_expert_parallel(settings: Settings, layout: layouts.Layout) -> bool:
    """Whether each rank keeps some experts whole, instead of a slice of each expert."""
    requested = settings.engine_args.get(VLLM.expert_parallel)
    if requested is not None:
        return bool(requested)
    many = layout.data > 1 or settings.concurrency >= _EXPERT_PARALLEL_FROM
    return many and layout.tensor * layout.data > 1


def _choose_max_sequences(
    even: int, settings: Settings, layout: layouts.Layout, profile: Profile, batched: int
) -> int:
    """Return the most requests at once of an engine; `even` is its even share of all requests."""
    sequences = even
    if layout.data > 1:
        # vLLM refuses more requests at once than tokens of a pass.
        sequences = max(
            even,
            min(_UNEVEN_FACTOR * even, divide_requests(settings, layout.instances), batched),
        )
    return min(sequences, profile.sequences or MAX_SEQUENCES)


def divide_requests(settings: Settings, engines: int) -> int:
    """Return the requests at once that one of several engines has to take."""
    return -(-settings.concurrency // engines)


def _weigh_stages(
    work: Workload, layout: layouts.Layout, draft: Draft | None, args: Mapping[str, Any]
) -> list[tuple[Stage, int]]:
    """Give each stage's bytes on each GPU: all ranks share its experts, a copy's ranks the rest."""
    shape, weights_format = work.model.architecture, work.weights_format
    ranks, more = layout.tensor * layout.data, _count_redundant_experts(args)
    rows = []
    for stage in cut_stages(shape, layout.pipeline):
        size = count_plain_bytes(shape, weights_format, layout.tensor, stage)
        for experts in (shape.experts, more):
            size += count_experts_bytes(shape, weights_format, stage, experts) // ranks
        rows.append((stage, size + speculative.count_draft_bytes(draft, layout.tensor)))
    return rows


def _count_redundant_experts(args: Mapping[str, Any]) -> int:
    """Return how many redundant experts EPLB keeps in each layer."""
    config = args.get(VLLM.expert_balancing_config)
    copies = parse_int(config.get(COPIES)) if isinstance(config, dict) else None
    return copies or 0 if args.get(VLLM.expert_balancing) else 0


def _list_offloaded_cache(args: Mapping[str, Any], engines: int) -> tuple[MemoryPart, ...]:
    """List the host memory of offloaded cache: `kv-offloading-size`, in GiB of each engine."""
    size = parse_gib(args.get(VLLM.cache_offloading))
    if size is None:
        return ()
    return (MemoryPart("cache", "Cache moved out of the GPUs", round(size * GIB) * engines),)
