"""Price the fix of a finding, in dollars, by the kind of its remedy in the registry.

GPUs are counted by the same sums as the plan's memory, and priced by observed prices
(prices.yaml, `purchase`). There are no published dated prices of memory modules and disks: they are
priced if a site names them (`memory_gib`, `disk_tb` in the assumptions of its own prices.yaml).

Decides: what a fix costs.
Held by: tests/unit/planner/test_remediation.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kimi_prov.catalog.currency import format_dated_source
from kimi_prov.catalog.versions import parse_version
from kimi_prov.planner.decisions import Workload
from kimi_prov.planner.memory import gpu
from kimi_prov.planner.registry import DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kimi_prov.catalog.hardware import Gpu
    from kimi_prov.catalog.prices import Purchase
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.planner.registry.definition import Remedy
    from kimi_prov.planner.rules.context import PlanContext

# Kinds of remedy that take work and no money.
_FREE_REMEDIES: frozenset[Remedy] = frozenset(
    {"setting", "catalogue", "software", "process", "reboot", "firmware"}
)
# Findings without a known cost, although their remedy is work.
_UNPRICED = frozenset(
    {"engine.model_unknown", "experts.instances", "numa.instances", "numa.node_room", "numa.pools"}
)
_GPU_COUNTS = (1, 2, 4, 8)
_GIB, _TB = 1 << 30, 10**12


def price_findings(rows: Iterable[Finding], context: PlanContext) -> list[Finding]:
    """Return the findings with the costs of their fixes, as far as they are known."""
    return [_price_finding(row, context) for row in rows]


def _price_finding(row: Finding, context: PlanContext) -> Finding:
    if row["severity"] not in ("blocker", "warning"):
        return row
    cost = _estimate_cost(row["id"], context)
    if cost is None:
        return row
    usd, basis = cost
    return {**row, "cost_usd": usd, "cost_basis": basis}


def _estimate_cost(identity: str, context: PlanContext) -> tuple[float, str] | None:
    remedy = DEFINITIONS[identity].remedy
    if remedy in _FREE_REMEDIES and identity not in _UNPRICED:
        return 0.0, "work, nothing to buy"
    if remedy == "gpus":
        return _price_gpus(context)
    if remedy == "memory":
        plan = context.plan["memory"]
        missing = plan["host_ram_required_bytes"] - plan["host_ram_available_bytes"]
        return _price_amount(context, "memory_gib", missing / _GIB, "GiB of memory")
    if remedy == "modules":
        return _price_modules(context)
    if remedy == "disk":
        return _price_amount(
            context, "disk_tb", context.plan["disk"]["required_bytes"] / _TB, "TB of disk"
        )
    return None


def _price_gpus(context: PlanContext) -> tuple[float, str] | None:
    """Return the price of GPUs that hold the model: more of the same, else the cheapest others."""
    rows = context.catalogue.prices.purchase
    there = context.host.gpu.name if context.host.gpu else None
    same = [offer for row in rows if row.name == there and (offer := _price_offer(row, context))]
    others = (offer for row in rows if (offer := _price_offer(row, context)))
    return same[0] if same else min(others, default=None)


def _price_offer(price: Purchase, context: PlanContext) -> tuple[float, str] | None:
    sold = context.catalogue.find_gpu(price.name)
    needed = _count_needed_gpus(sold, context) if sold is not None else None
    if sold is None or needed is None:
        return None
    there = (
        len(context.host.gpu_bytes)
        if context.host.gpu and context.host.gpu.name == sold.name
        else 0
    )
    bought = needed - there
    if bought <= 0:
        return None
    more = " more" if there else ""
    return bought * (price.low_usd + price.high_usd) / 2, (
        f"{bought}{more} {sold.name} at ${price.low_usd:,.0f} to ${price.high_usd:,.0f} "
        f"({format_dated_source(price)}); a machine that takes them is not counted"
    )


def _count_needed_gpus(sold: Gpu, context: PlanContext) -> int | None:
    """Return how many of a GPU hold the model with all its weights; None where eight do not."""
    engine = context.catalogue.engine("vllm", "cuda")
    if engine is None or context.choice.weights_format not in engine.formats:
        return None
    known = context.model.versions("vllm")
    if known is None or parse_version(engine.version) < parse_version(known.least):
        return None
    # The inventory's flags for the present machine do not hold for another.
    settings = replace(context.settings, engine_args={})
    for many in _GPU_COUNTS:
        host = replace(
            context.host,
            cards=(sold,) * many,
            capabilities=(sold.compute_capability,) * many,
            gpu_bytes=(sold.memory_bytes,) * many,
        )
        work = Workload(engine, context.model, context.choice.weights_format)
        if gpu.has_room(gpu.make_budget(host, settings, context.catalogue, work)):
            return many
    return None


def _price_modules(context: PlanContext) -> tuple[float, str] | None:
    used, total = context.host.channels_used, context.host.channels_total
    if total is None and context.host.processor and context.host.processor.memory_channels:
        total = context.host.processor.memory_channels * context.host.sockets
    if not used or not total:
        return None
    share = context.host.memory_bytes / _GIB / used
    return _price_amount(context, "memory_gib", (total - used) * share, "GiB of memory")


def _price_amount(
    context: PlanContext, name: str, amount: float, unit: str
) -> tuple[float, str] | None:
    """Price an amount by a row of a site's own assumptions, in dollars for each GiB or TB."""
    row = next((r for r in context.catalogue.prices.assumptions if r.name == name), None)
    if row is None or amount <= 0:
        return None
    return round(amount * row.value, 2), (
        f"{amount:,.0f} {unit} at ${row.value:,.2f} each ({format_dated_source(row)})"
    )
