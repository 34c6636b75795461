"""What mending a finding costs, in dollars: work alone, cards, memory, disk, or not known.

Cards are counted by the same sums as the plan's memory, and priced as they were seen to be sold
(prices.yaml, `purchase`). Nobody publishes dated prices of memory modules and disks: a site that
names them (`memory_gib`, `disk_tb` among the assumptions of its own prices.yaml) has them counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kimi_prov.catalog.loader import number
from kimi_prov.planner.memory import gpu

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kimi_prov.catalog.rows import Gpu, Purchase
    from kimi_prov.planner.findings import Finding
    from kimi_prov.planner.rules.context import Case

# Settings, software and what is asked for, by the beginning of a finding's id.
_WORK = (
    "context.",
    "conversion.",
    "cpu.amx_permission",
    "cpu.cores_left",
    "cpu.threads_as_cores",
    "driver.",
    "engine.draft",
    "engine.flag",
    "engine.known_broken",
    "engine.kv_dtype",
    "engine.sequences",
    "engine.too_old",
    "engine.version",
    "engine_args.",
    "firewall.",
    "gpu.divisible",
    "gpu.fabric",
    "gpu.held",
    "gpu.mig",
    "host.gib",
    "memory.hugepages",
    "memory.shm",
    "memory.swap",
    "numa.binding",
    "numa.sub_nodes",
    "os.",
    "port.",
    "python.",
    "ram_disk.",
    "tuning.",
    "weights.",
)
_CARDS = ("engine.format", "engine.no_gpu", "gpu.memory")
_MEMORY = ("memory.host", "numa.node_memory")
_DISK = ("disk.capacity", "disk.room")
_SIZES = (1, 2, 4, 8)
_GIB, _TB = 1 << 30, 10**12


def priced(rows: Iterable[Finding], case: Case) -> list[Finding]:
    """Give the findings with what mending them costs, as far as that is known."""
    return [_priced(row, case) for row in rows]


def _priced(row: Finding, case: Case) -> Finding:
    if row["severity"] not in ("blocker", "warning"):
        return row
    found = _cost(row["id"], case)
    if found is None:
        return row
    usd, basis = found
    return {**row, "cost_usd": usd, "cost_basis": basis}


def _cost(identity: str, case: Case) -> tuple[float, str] | None:
    if identity.startswith(_CARDS):
        return _cards(case)
    if identity.startswith(_WORK):
        return 0.0, "work, nothing to buy"
    if identity.startswith(_MEMORY):
        plan = case.plan["memory"]
        missing = plan["host_ram_required_bytes"] - plan["host_ram_available_bytes"]
        return _bulk(case, "memory_gib", missing / _GIB, "GiB of memory")
    if identity == "memory.channels":
        return _modules(case)
    if identity in _DISK:
        return _bulk(case, "disk_tb", case.plan["disk"]["required_bytes"] / _TB, "TB of disk")
    return None


def _cards(case: Case) -> tuple[float, str] | None:
    """Give the least that cards which hold the model cost: more of those there, or others."""
    offers = [offer for row in case.catalogue.prices.purchase if (offer := _offer(row, case))]
    return min(offers, default=None)


def _offer(price: Purchase, case: Case) -> tuple[float, str] | None:
    card = case.catalogue.find_gpu(price.name)
    needed = _needed(card, case) if card is not None else None
    if card is None or needed is None:
        return None
    there = len(case.host.gpu_bytes) if case.host.gpu and case.host.gpu.name == card.name else 0
    bought = needed - there
    if bought <= 0:
        return None
    more = " more" if there else ""
    return bought * (price.low_usd + price.high_usd) / 2, (
        f"{bought}{more} {card.name} at ${price.low_usd:,.0f} to ${price.high_usd:,.0f} "
        f"({price.source}); a machine that takes them is not counted"
    )


def _needed(card: Gpu, case: Case) -> int | None:
    """Return how many of a card hold the model with all its weights; None where eight do not."""
    engine = case.catalogue.engine("vllm", "cuda")
    if engine is None or case.choice.weights_format not in engine.formats:
        return None
    known = case.model.versions("vllm")
    if known is None or number(engine.version) < number(known.least):
        return None
    # What the inventory names for the machine as it is does not hold for another.
    wishes = replace(case.wishes, values={**case.wishes.values, "kimi_engine_args": {}})
    for many in _SIZES:
        host = replace(case.host, gpu=card, gpu_bytes=(card.memory_bytes,) * many)
        work = (engine, case.choice.weights_format)
        if gpu.fits(host, wishes, case.model, case.catalogue, work):
            return many
    return None


def _modules(case: Case) -> tuple[float, str] | None:
    memory = case.facts["memory"]
    used, total = memory.get("channels_populated"), memory.get("channels_total")
    if total is None and case.host.processor and case.host.processor.memory_channels:
        total = case.host.processor.memory_channels * case.host.sockets
    if not used or not total:
        return None
    share = case.host.memory_bytes / _GIB / used
    return _bulk(case, "memory_gib", (total - used) * share, "GiB of memory")


def _bulk(case: Case, name: str, amount: float, unit: str) -> tuple[float, str] | None:
    """Price an amount by a row of a site's own assumptions, in dollars for each GiB or TB."""
    row = next((r for r in case.catalogue.prices.assumptions if r.name == name), None)
    if row is None or amount <= 0:
        return None
    return round(amount * row.value, 2), (
        f"{amount:,.0f} {unit} at ${row.value:,.2f} each ({row.source})"
    )
