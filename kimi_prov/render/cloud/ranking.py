"""The kinds of machines that serve the model, the cheapest for the load first.

Each kind of the catalogue is planned with the site's settings. A price is of that kind on those
terms, or unknown: prices of different sources are not put beside each other. What a start takes is
the sum of its parts, each estimated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.facts import spec
from kimi_prov.planner.plan import find_refusals, make_plan
from kimi_prov.render.cloud import offers, variables
from kimi_prov.show.report import cost
from kimi_prov.sizing.curve import compute_output_rate
from kimi_prov.sizing.load import Load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.catalog.clouds import CloudMachine
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.prices import MachineHour
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.planner.settings.parsing import Settings

# Reference 004: from a bucket onto a local disk, and a change of the driver by a restart.
_BUCKET_BYTES_S = 1.2 * (1 << 30)
_DRIVER_S = 120.0
# Packages of the engine, its proxy and kimi-prov itself, from an index that is near.
_INSTALL_S = 180.0
# A plan for each kind wants a disk; the weights and what lies beside them fit on it.
_DISK_GB = 2000


@dataclass(frozen=True)
class Ranked:
    """A kind that serves the model: what it costs, how fast it is, what a cold start takes.

    `tok_s` are output tokens a second, the time to read their prompts included. Money in US
    dollars; None where no price of the kind on these terms is known.
    """

    kind: CloudMachine
    context: int
    tok_s: float
    download_s: float
    load_s: float
    usd_hour: float | None = None
    spot: bool | None = None
    source: str | None = None

    @property
    def usd_per_mtok(self) -> float | None:
        """Dollars for a million output tokens of the load, when the machine is at work."""
        if self.usd_hour is None:
            return None
        return cost.usd_per_million(self.usd_hour, self.tok_s)

    @property
    def cold_start_s(self) -> float:
        """Seconds from an empty machine to an answer; what is not the machine's is left out."""
        return _DRIVER_S + _INSTALL_S + self.download_s + self.load_s

    @property
    def usd_cold_start(self) -> float | None:
        """Dollars that a cold start costs."""
        return None if self.usd_hour is None else self.usd_hour * self.cold_start_s / 3600


@dataclass(frozen=True)
class Chosen:
    """The kinds that are tried, in their order, and how all that serve compare."""

    kinds: Sequence[CloudMachine]
    ranked: Sequence[Ranked]


def chosen(settings: Settings, catalogue: Catalogue) -> Chosen:
    """Return the site's kinds, else those that serve. Raises UserError for an unknown one."""
    rows = ranked(settings, catalogue)
    named = offers.machines(settings, catalogue)
    return Chosen(named or [row.kind for row in rows], rows)


def inputs(settings: Settings) -> float:
    """Return the tokens of a prompt for each token of its answer."""
    load = Load(input_tokens=settings.input_tokens, output_tokens=settings.output_tokens)
    return load.inputs


def cheaper_below(row: Ranked, first: Ranked) -> float | None:
    """Return the price of an hour below which a kind without one is the cheapest for the load."""
    if row.usd_hour is not None or first.usd_hour is None:
        return None
    return first.usd_hour * row.tok_s / first.tok_s


def ranked(settings: Settings, catalogue: Catalogue) -> list[Ranked]:
    """Return the kinds of the site's cloud that serve the model; those with a price come first."""
    rows = [
        _of(kind, settings, catalogue) for kind in catalogue.clouds if kind.cloud == settings.cloud
    ]
    return sorted(
        (row for row in rows if row is not None),
        key=lambda row: (row.usd_per_mtok is None, row.usd_per_mtok or 0, -row.tok_s),
    )


def _of(kind: CloudMachine, settings: Settings, catalogue: Catalogue) -> Ranked | None:
    facts = spec.make_facts(kind.sheet(_DISK_GB), catalogue, f"clouds.yaml: {kind.name}")
    plan = make_plan(facts, variables.of_machine(settings), catalogue)
    speed = compute_output_rate(plan["throughput"], inputs(settings), "expected")
    if find_refusals(plan) or not speed:
        return None
    price = _price(kind, settings, catalogue)
    return Ranked(
        kind,
        plan["model"]["context"],
        speed,
        plan["weights"]["bytes"] / _BUCKET_BYTES_S,
        _load_s(plan),
        price.usd if price else None,
        price.spot if price else None,
        price.source if price else None,
    )


def _load_s(plan: MachinePlan) -> float:
    return float((plan["throughput"]["load_s"] or {}).get("expected") or 0)


def _price(kind: CloudMachine, settings: Settings, catalogue: Catalogue) -> MachineHour | None:
    """Return the price on the terms that are tried first; None where nobody wrote it down."""
    spot = settings.cloud_terms != "on-demand"
    rows = [row for row in catalogue.prices.machine_hour if row.machine == kind.name]
    return next((row for row in rows if row.spot == spot), None)
