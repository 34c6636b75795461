"""How a model and its copies are spread over GPUs: tensor, pipeline, data, context parallelism.

Decides: tensor, pipeline, data and context parallelism.
Applied by: roles/serve.
Held by: tests/unit/planner/memory/test_layouts.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kimi_prov.catalog.broken import Combination
from kimi_prov.planner.settings.flag_names import VLLM, find_flag_names, parse_int

if TYPE_CHECKING:
    from kimi_prov.catalog.broken import BrokenCombination
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import Workload
    from kimi_prov.planner.settings.parsing import Settings

# The layout with at most so many ranks of tensor parallelism is tried first: one NVSwitch domain.
_MAX_TENSOR_RANKS = 8


@dataclass(frozen=True)
class Layout:
    """How instances are spread over GPUs; `context` ranks share the cache of each conversation."""

    tensor: int
    pipeline: int = 1
    data: int = 1
    context: int = 1
    instances: int = 1


def count_tensor_ranks(host: Host, settings: Settings, catalogue: Catalogue, work: Workload) -> int:
    """Return the GPUs that share one model: as set, or the largest power of two that divides it."""
    requested = parse_int(
        settings.engine_args.get(find_flag_names(work.engine.name).tensor_parallel)
    )
    if requested is not None:
        return requested
    shape = work.model.architecture
    ranks = 1
    while (
        ranks * 2 <= len(host.gpu_bytes)
        and shape.heads % (ranks * 2) == 0
        and shape.expert_width % (ranks * 2) == 0
        and not _is_broken_above(ranks * 2, catalogue, work)
    ):
        ranks *= 2
    return ranks


def _is_broken_above(ranks: int, catalogue: Catalogue, work: Workload) -> bool:
    """Whether the catalogue knows wrong answers with so many ranks, and right ones with fewer."""
    return any(row.severity == "blocker" for row in _find_faults(Layout(ranks), catalogue, work))


def _find_faults(
    layout: Layout, catalogue: Catalogue, work: Workload, hosts: int = 1
) -> list[BrokenCombination]:
    """Find known faults that more ranks, stages or copies of attention have than fewer."""
    engine, model = work.engine, work.model
    hits = catalogue.broken_with(
        Combination(
            engine=engine.name,
            variant=engine.variant,
            version=engine.version,
            model=model.name,
            weights_format=model.native_format,
            tensor_parallel=layout.tensor,
            pipeline_parallel=layout.pipeline,
            data_parallel=layout.data,
            hosts=hosts,
        )
    )
    return [
        row
        for row in hits
        if row.severity != "info"
        and (row.tensor_parallel_above or row.pipeline_parallel_above or row.data_parallel_above)
    ]


def list_layouts(
    host: Host, settings: Settings, catalogue: Catalogue, work: Workload
) -> list[Layout]:
    """List the layouts that the engine takes on these GPUs, the simplest first.

    One host: ranks of tensor parallelism times stages or copies of attention, as many engines side
    by side as there are GPUs and requests for. Several hosts: tensor parallelism inside each host,
    one stage or more on each. With MLA, ranks may also share the cache of each conversation.
    A layout that the inventory names is the only one, and so is a number of engines.
    """
    args = settings.engine_args
    requested = [parse_int(args.get(name)) for name in (VLLM.pipeline_parallel, VLLM.data_parallel)]
    most = count_tensor_ranks(host, settings, catalogue, work)
    hosts = settings.hosts_per_model
    gpus = len(host.gpu_bytes) * hosts
    stages, copies = requested[0] or 1, requested[1] or 1
    engines = 1 if settings.auto("instances") or hosts > 1 else int(settings.instances)
    if any(requested) or VLLM.tensor_parallel in args:
        if VLLM.tensor_parallel not in args:
            most = max(1, min(most, _round_to_power_of_two(gpus // (stages * copies * engines))))
        if hosts > 1 and requested[0] is None:
            stages = max(1, gpus // (most * copies))
        context = parse_int(args.get(VLLM.decode_context_parallel)) or 1
        return [Layout(most, stages, copies, context, engines)]
    if hosts > 1:
        candidates = [Layout(most, gpus // most)]
    else:
        candidates = [
            layout
            for layout in _list_layouts_of_host(most, gpus, settings)
            if layout.pipeline * layout.data == 1 or not _find_faults(layout, catalogue, work)
        ]
    return _add_shared_caches(candidates, host, settings, work)


def _list_layouts_of_host(most: int, gpus: int, settings: Settings) -> list[Layout]:
    """List the layouts of one host, larger ranks first: those of one NVSwitch domain lead."""
    fixed = None if settings.auto("instances") else int(settings.instances)
    room = max(1, gpus // fixed) if fixed else gpus
    sizes = [1 << power for power in reversed(range(most.bit_length()))]
    sizes.sort(key=lambda size: size > _MAX_TENSOR_RANKS)
    splits = [(1, 1), *((stages, 1) for stages in range(2, room + 1))]
    splits += [(1, 1 << power) for power in range(1, room.bit_length())]
    layouts = []
    for stages, copies in splits:
        for size in sizes:
            each = size * stages * copies
            if each <= room:
                many = fixed or max(1, min(gpus // each, settings.concurrency))
                layouts.append(Layout(size, stages, copies, instances=many))
    return layouts


def _add_shared_caches(
    candidates: list[Layout], host: Host, settings: Settings, work: Workload
) -> list[Layout]:
    """Add the layouts whose ranks share each conversation's cache, as vLLM's MLA lets them."""
    context = parse_int(settings.engine_args.get(VLLM.decode_context_parallel))
    if context:
        return [replace(layout, context=context) for layout in candidates]
    if work.model.architecture.attention != "mla" or host.amd or settings.kv_dtype == "fp8":
        return candidates
    return candidates + [
        replace(layout, context=1 << power)
        for layout in candidates
        if layout.data == 1
        for power in range(1, layout.tensor.bit_length())
    ]


def _round_to_power_of_two(count: int) -> int:
    """Return the largest power of two up to `count`, or 0."""
    return 1 << (count.bit_length() - 1) if count > 0 else 0
