"""The catalogue's prices of one machine, for the costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.catalog.currency import format_dated_source
from kimi_prov.contract.gpu_rows import get_gpu_memory, get_gpu_name
from kimi_prov.show.report.cost import Api, MachinePrices, Rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kimi_prov.catalog.hardware import Gpu
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.prices import PartPrice, Prices
    from kimi_prov.contract.documents.check import UsualPart
    from kimi_prov.contract.documents.facts import Facts

# The rates of registered DDR5, from the first to JEDEC's last without a multiplexer.
_DDR5_MT_S = (4000, 6400)
_GIB = 1 << 30


def find_prices(facts: Facts, catalogue: Catalogue) -> MachinePrices:
    """Return prices of the machine that the facts describe."""
    prices = catalogue.prices
    assumed = {row.name: Rate(row.value, row.source) for row in prices.assumptions}
    gpus = _find_gpus(facts, catalogue)
    return MachinePrices(
        assumed=assumed,
        apis=[
            Api(
                row.name,
                row.model,
                row.input_usd_per_mtok,
                row.output_usd_per_mtok,
                format_dated_source(row),
            )
            for row in prices.api
        ],
        usual_rent=_sum_offered_rent(gpus, catalogue) or _find_rented_machine(gpus, catalogue),
        usual_gpu_price=_sum_prices(gpus, catalogue),
        usual_parts=[*_price_processors(facts, prices), *_price_memory(facts, prices)],
    )


def _price_processors(facts: Facts, prices: Prices) -> Iterator[UsualPart]:
    cpu = facts.get("cpu") or {}
    name, many = cpu.get("catalogue_name"), cpu.get("sockets") or 1
    row = prices.find_part(name) if name else None
    if row is not None:
        yield _price_parts(f"{many} x {row.name}", many, row)


def _price_memory(facts: Facts, prices: Prices) -> Iterator[UsualPart]:
    """Price registered DDR5; faster modules are of another kind, MRDIMM."""
    dimms = (facts.get("memory") or {}).get("dimms") or []
    row = prices.find_part("DDR5 RDIMM")
    slow, fast = _DDR5_MT_S
    if row is None or not dimms:
        return
    if all(slow <= (dimm.get("speed_mt_s") or 0) <= fast for dimm in dimms):
        gigabytes = sum(dimm.get("size_bytes") or 0 for dimm in dimms) / _GIB
        yield _price_parts(f"{gigabytes:,.0f} GB of DDR5", gigabytes, row)


def _price_parts(what: str, many: float, row: PartPrice) -> UsualPart:
    low, high = (round(many * usd) for usd in (row.low_usd, row.high_usd))
    return {"what": what, "low": low, "high": high, "source": format_dated_source(row)}


def _find_gpus(facts: Facts, catalogue: Catalogue) -> list[Gpu] | None:
    """Return the machine's GPUs of the catalogue; None where one is missing there."""
    found = []
    for part in facts.get("gpus") or ():
        gpu = catalogue.find_gpu(get_gpu_name(part) or "", get_gpu_memory(part))
        if gpu is None:
            return None
        found.append(gpu)
    return found


def _sum_offered_rent(gpus: Sequence[Gpu] | None, catalogue: Catalogue) -> Rate | None:
    """Sum up what such GPUs are offered for on demand; the source has the lowest and highest.

    What an hour costs its owner (`gpu_hour`) is no rent: beside offers it would look too cheap.
    """
    rows = [row for gpu in gpus or () if (row := catalogue.prices.find_rent(gpu.name))]
    if not rows or len(rows) < len(gpus or ()):
        return None
    low, high = sum(row.low_usd for row in rows), sum(row.high_usd for row in rows)
    source = f"${low:,.2f} to ${high:,.2f} on demand: {format_dated_source(rows[0])}"
    return Rate(round(sum(row.usual_usd for row in rows), 2), source)


def _find_rented_machine(gpus: Sequence[Gpu] | None, catalogue: Catalogue) -> Rate | None:
    """Return the usual rent of a whole machine with these GPUs."""
    names = [gpu.name for gpu in gpus or ()]
    for row in catalogue.prices.machine_hour:
        if names == [row.gpu] * row.gpus:
            return Rate(row.usd, f"{row.name}: {format_dated_source(row)}")
    return None


def _sum_prices(
    gpus: Sequence[Gpu] | None, catalogue: Catalogue
) -> tuple[float, float, str] | None:
    rows = {row.name: row for row in catalogue.prices.purchase}
    found = [rows[gpu.name] for gpu in gpus or () if gpu.name in rows]
    if not gpus or len(found) < len(gpus):
        return None
    return (
        sum(r.low_usd for r in found),
        sum(r.high_usd for r in found),
        format_dated_source(found[0]),
    )
