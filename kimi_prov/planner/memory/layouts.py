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
    engine, model = work.engine, work.model
    combination = Combination(
        engine=engine.name,
        variant=engine.variant,
        version=engine.version,
        model=model.name,
        weights_format=model.native_format,
        tensor_parallel=ranks,
    )
    hits = catalogue.broken_with(combination)
    return any(row.tensor_parallel_above and row.severity == "blocker" for row in hits)


def list_layouts(
    host: Host, settings: Settings, catalogue: Catalogue, work: Workload
) -> list[Layout]:
    """List the layouts that the GPUs allow, the simplest first.

    One host: tensor parallelism over one NVSwitch domain; over all GPUs, where there are more;
    pipeline stages, where the number of GPUs is no power of two; context parallelism, where a
    context is set. Several hosts: tensor parallelism inside each host, one stage or more on each.
    A layout that the inventory names is the only one.
    """
    args = settings.engine_args
    requested = [parse_int(args.get(name)) for name in (VLLM.pipeline_parallel, VLLM.data_parallel)]
    context = parse_int(args.get(VLLM.decode_context_parallel))
    most = count_tensor_ranks(host, settings, catalogue, work)
    hosts = settings.hosts_per_model
    gpus = len(host.gpu_bytes) * hosts
    stages, copies = requested[0] or 1, requested[1] or 1
    if any(requested) or VLLM.tensor_parallel in args:
        if VLLM.tensor_parallel not in args:
            most = max(1, min(most, _round_to_power_of_two(gpus // (stages * copies))))
        if hosts > 1 and requested[0] is None:
            stages = max(1, gpus // (most * copies))
        return [Layout(most, stages, copies, context or 1)]
    if hosts > 1:
        candidates = [Layout(most, gpus // most)]
    else:
        sizes = dict.fromkeys((min(most, _MAX_TENSOR_RANKS), most))
        candidates = [Layout(size, instances=max(1, gpus // size)) for size in sizes]
        candidates += _list_pipeline_layouts(most, gpus)
    if context:
        return [replace(layout, context=context) for layout in candidates]
    mla = work.model.architecture.attention == "mla" and not host.amd
    if mla and not settings.auto("context") and settings.kv_dtype != "fp8":
        candidates += [
            replace(layout, context=layout.tensor) for layout in candidates if layout.tensor > 1
        ]
    return candidates


def _list_pipeline_layouts(most: int, gpus: int) -> list[Layout]:
    """List layouts whose pipeline stages use more GPUs than tensor parallelism alone."""
    candidates = []
    size = most
    while size:
        if gpus // size > 1 and size * (gpus // size) > most:
            candidates.append(Layout(size, gpus // size))
        size //= 2
    return candidates


def _round_to_power_of_two(count: int) -> int:
    """Return the largest power of two up to `count`, or 0."""
    return 1 << (count.bit_length() - 1) if count > 0 else 0
