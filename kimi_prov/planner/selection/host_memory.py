"""Chooses by search what has weights in host memory: engines on processors, and hybrids.

On processors every expert backend that the machine supports is tried with every number of engines,
each on a NUMA node of its own, and with one over all nodes; in a hybrid, fewer GPUs than there are.
Not tried: other numbers of threads, whose cost was measured and is a rule (two cores stay free),
and other formats of weights, which change answers and are the inventory's choice.

Decides: NUMA nodes, thread pools and instances (how many engines, and whose kernel).
Applied by: roles/serve.
Held by: tests/unit/planner/selection/test_host_memory.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kimi_prov.contract.cpu_lists import parse_list
from kimi_prov.planner.decisions import OutsideGpus, Workload
from kimi_prov.planner.engine import expert_backend
from kimi_prov.planner.findings import Findings
from kimi_prov.planner.memory import budgets, gpu, placement
from kimi_prov.planner.selection import search, served

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.models import Model
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import Budget, EngineChoice, Placement
    from kimi_prov.planner.settings.parsing import Settings

_KERNELS = {"native": "this project's kernel", "kt": "kt-kernel", "vllm": "vLLM's own kernel"}


class _Row(NamedTuple):
    """A way to share out host memory. `notes`: findings about what the inventory sets."""

    choice: EngineChoice
    budget: Budget
    notes: Findings


def choose_host_memory(
    host: Host,
    settings: Settings,
    catalogue: Catalogue,
    model: Model,
    choice: EngineChoice,
    backends: expert_backend.Backends,
    findings: Findings,
) -> EngineChoice:
    """Return the choice with the backend of the experts, the memory, and why."""
    rows = _list_rows(host, settings, catalogue, model, choice, backends)
    least = gpu.count_least_tokens(settings, model)
    new = [row for row in rows if row.choice.experts != backends.kept or backends.kept is None]
    able = [row for row in new if row.budget.kv_tokens_one >= least]
    able = able or [max(new, key=lambda row: row.budget.kv_tokens_one)]
    kept = [
        row
        for row in rows
        if served.is_kept_outside_gpus(row.choice, row.budget, settings, len(host.nodes))
    ]
    chosen, reasons = _choose_row(host, settings, catalogue, model, able, kept)
    findings.extend(chosen.notes.rows())
    dense = expert_backend.choose_dense_format(settings, chosen.choice.experts, findings)
    return replace(chosen.choice, dense=dense, beside=OutsideGpus(chosen.budget, *reasons))


def _list_rows(
    host: Host,
    settings: Settings,
    catalogue: Catalogue,
    model: Model,
    choice: EngineChoice,
    backends: expert_backend.Backends,
) -> list[_Row]:
    """List every way, whatever context its cache holds."""
    rows = []
    also = (backends.kept,) if backends.kept else ()
    for backend in (*backends.able, *also) or (None,):
        dense = expert_backend.choose_dense_format(settings, backend, Findings())
        work = Workload(choice.engine, model, choice.weights_format, dense)
        for over in expert_backend.list_spans(host, settings, catalogue, work, backend):
            one = replace(choice, experts=backend, dense=dense, over_nodes=over)
            notes = Findings()
            ways = budgets.list_budgets(host, settings, model, one, catalogue, notes)
            rows += [_Row(one, budget, notes) for budget in ways]
    return rows


def _choose_row(
    host: Host,
    settings: Settings,
    catalogue: Catalogue,
    model: Model,
    able: Sequence[_Row],
    kept: Sequence[_Row],
) -> tuple[_Row, tuple[str, str]]:
    """Choose the best of the able rows, or of those by which the machine serves, where it does."""
    every = [*able, *(row for row in kept if row not in able)]
    rated = [(row, _estimate_row(host, settings, catalogue, model, row)) for row in every]
    known = [(row, candidate) for row, candidate in rated if candidate is not None]
    candidates = [candidate for row, candidate in known if row in able]
    if not candidates:
        return _choose_simplest(host, kept or able), ("", "")
    best = search.choose_best(candidates, settings.optimise)
    stay = [candidate for row, candidate in known if row in kept]
    chosen = search.choose_best(stay, settings.optimise) if stay else best
    row = next(row for row, candidate in known if candidate is chosen)
    return row, search.describe_choice(chosen, best, candidates, settings.optimise)


def _choose_simplest(host: Host, rows: Sequence[_Row]) -> _Row:
    """Choose where no speed is estimated: an engine on every node if all hold one, or the first."""
    every = [row for row in rows if row.budget.instances == len(host.nodes)]
    return (every or rows)[0]


def _estimate_row(
    host: Host, settings: Settings, catalogue: Catalogue, model: Model, row: _Row
) -> search.Candidate | None:
    if model.is_synthetic:
        return None
    # This import takes a quarter of a second, which plans of lab models do not need.
    from kimi_prov.planner.throughput import expected  # noqa: PLC0415

    where = placement.choose_placements(host, model, row.choice, row.budget, catalogue, Findings())
    where = placement.choose_threads(host, settings, where)
    speeds = expected.estimate_outside_gpus(host, settings, model, row.choice, row.budget, where[0])
    if speeds is None:
        return None
    way = _describe_way(row.choice, row.budget, where[0], model)
    return search.Candidate(row.budget, *speeds, way=way)


def _describe_way(choice: EngineChoice, budget: Budget, where: Placement, model: Model) -> str:
    """Say whose kernel computes on how many cores, and what the GPUs hold of it."""
    cores = where.pool_threads or len(parse_list(where.threads))
    nodes = len(where.pools or where.nodes)
    on = f"{cores} cores of {nodes} nodes" if nodes > 1 else f"{cores} cores"
    if budget.gpu is not None:
        cards = f"{budget.gpu.ranks} GPU{'s' if budget.gpu.ranks > 1 else ''}"
        held = f"{budget.gpu.experts} of {model.architecture.experts} experts a layer"
        return f"{cards} with {held} and {on}"
    return f"{_KERNELS[choice.experts]} on {on}" if choice.experts else on
