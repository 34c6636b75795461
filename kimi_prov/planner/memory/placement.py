"""Where every instance runs, and which of its memory is bound to which NUMA nodes.

Decides: NUMA nodes, thread pools and instances.
Applied by: roles/serve.
Held by: tests/unit/planner/placement/test_numa.py, tests/unit/planner/test_hybrid_plans.py,
  tests/lab/test_emulated.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kimi_prov.contract.cpu_lists import format_list, parse_list
from kimi_prov.planner.decisions import BoundMemory
from kimi_prov.planner.engine import expert_backend
from kimi_prov.planner.placement import numa

if TYPE_CHECKING:
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.models import Model
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import Budget, EngineChoice, Placement
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings


def choose_placements(
    host: Host,
    model: Model,
    choice: EngineChoice,
    budget: Budget,
    catalogue: Catalogue,
    findings: Findings,
) -> tuple[Placement, ...]:
    """Place each instance."""
    count, gpu = budget.instances, budget.gpu
    if choice.experts == "kt":
        routed = expert_backend.count_resident_bytes(catalogue, choice.experts, model) or 0
        return (numa.place_beside_pools(host, routed, model.architecture.expert_width, findings),)
    if choice.hybrid and gpu is not None:
        width = model.architecture.expert_width
        where = numa.place_pools(host, budget.host_weights, width, len(host.gpu_bytes), findings)
        return (where,) * count
    resident = budget.host_required - host.reserve_bytes
    if gpu is not None:
        can_bind = choice.engine.numa_bind_flags
        # In a group, only the GPUs of this host count.
        near = min(gpu.gpus * count, len(host.gpu_bytes))
        return (numa.place_gpu_workers(host, near, resident, can_bind=can_bind),) * count
    if count > 1:
        return numa.place_on_nodes(host, count)
    if choice.over_nodes:
        return (numa.place_over_nodes(host),)
    return (numa.place_engine(host, resident, findings),)


def choose_threads(
    host: Host, settings: Settings, places: tuple[Placement, ...]
) -> tuple[Placement, ...]:
    """Give each engine as many cores as the inventory sets: the last ones of its own nodes."""
    if settings.auto("threads"):
        return places
    return tuple(_set_threads(host, where, int(settings.threads)) for where in places)


def _set_threads(host: Host, where: Placement, count: int) -> Placement:
    if where.pools:
        # Each pool has the same number of threads.
        each = max(1, min(count, len(host.primary)) // len(where.pools))
        return replace(where, pool_threads=each * len(where.pools))
    if not where.threads:
        return where
    allowed = set(parse_list(where.cpus)) if where.cpus else set(host.primary)
    cores = [core for core in host.primary if core in allowed] or list(host.primary)
    return replace(where, threads=format_list(cores[-count:]))


def measure_bound_memory(host: Host, budget: Budget, places: tuple[Placement, ...]) -> BoundMemory:
    """Return the host memory that is bound strictly, and its nodes: of pools, or whole engines."""
    if places[0].pools:
        return BoundMemory(budget.host_required, places[0].pools, budget.host_weights)
    strict = [node for where in places if where.strict for node in where.nodes]
    resident = budget.host_required - host.reserve_bytes
    return BoundMemory(budget.host_required, tuple(strict), resident)
