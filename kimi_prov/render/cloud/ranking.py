"""The kinds of machines that serve the model, the cheapest for the load first.

Each kind of the catalogue is planned with the site's settings. A price is known for that kind on
those terms, or unknown: prices of different sources are not compared. The time of a start is the
sum of its parts, each estimated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.contract.rendered_kinds import CLOUD_INIT, SKYPILOT
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
# A network disk of Google's SSD kind, by its documentation: MB/s, and more for each GB.
_DISK_MB_S, _DISK_MB_S_PER_GB = 240 * 1.048576, 0.48 * 0.9765625
# A plan for each kind wants a disk; the weights and what lies beside them fit on it.
_DISK_GB = 2000


@dataclass(frozen=True)
class RankedMachine:
    """A kind that serves the model: what it costs, how fast it is, what a cold start takes.

    `tok_s` are output tokens a second, the time to read their prompts included. Money in US
    dollars; None where no price of the kind on these terms is known.
    """

    kind: CloudMachine
    context: int
    tok_s: float
    download_s: float
    load_s: float
    driver_s: float
    usd_hour: float | None = None
    spot: bool | None = None
    source: str | None = None

    @property
    def usd_per_mtok(self) -> float | None:
        """Dollars for a million output tokens of the load, while the machine is busy."""
        if self.usd_hour is None:
            return None
        return cost.compute_usd_per_million(self.usd_hour, self.tok_s)

    @property
    def cold_start_s(self) -> float:
        """Seconds from an empty machine to an answer, without the time to get a machine."""
        return self.driver_s + _INSTALL_S + self.download_s + self.load_s

    @property
    def usd_cold_start(self) -> float | None:
        """Dollars that a cold start costs."""
        return None if self.usd_hour is None else self.usd_hour * self.cold_start_s / 3600


@dataclass(frozen=True)
class MachineChoice:
    """The kinds that are tried, in their order, and how all that serve compare."""

    kinds: Sequence[CloudMachine]
    ranked: Sequence[RankedMachine]


def choose_machines(settings: Settings, catalogue: Catalogue, launcher: str) -> MachineChoice:
    """Return the site's kinds, else those that serve. Raises UserError for an unknown one."""
    rows = rank_machines(settings, catalogue, launcher)
    named = offers.list_machines(settings, catalogue)
    return MachineChoice(named or [row.kind for row in rows], rows)


def count_inputs(settings: Settings) -> float:
    """Return the tokens of a prompt for each token of its answer."""
    load = Load(input_tokens=settings.input_tokens, output_tokens=settings.output_tokens)
    return load.inputs


def compute_break_even(row: RankedMachine, first: RankedMachine) -> float | None:
    """Return the price of an hour below which a kind without one is the cheapest for the load."""
    if row.usd_hour is not None or first.usd_hour is None:
        return None
    return first.usd_hour * row.tok_s / first.tok_s


def rank_machines(
    settings: Settings, catalogue: Catalogue, launcher: str = CLOUD_INIT
) -> list[RankedMachine]:
    """Return the kinds of the site's cloud that serve the model; those with a price come first.

    SkyPilot's own images have a driver of the branch that the plan asks for.
    """
    ready = launcher == SKYPILOT and settings.cloud_image is None
    driver_s = 0.0 if ready else _DRIVER_S
    rows = [
        _rank_machine(kind, settings, catalogue, driver_s)
        for kind in catalogue.clouds
        if kind.cloud == settings.cloud
    ]
    return sorted(
        (row for row in rows if row is not None),
        key=lambda row: (row.usd_per_mtok is None, row.usd_per_mtok or 0, -row.tok_s),
    )


def _rank_machine(
    kind: CloudMachine, settings: Settings, catalogue: Catalogue, driver_s: float
) -> RankedMachine | None:
    facts = spec.make_facts(kind.sheet(_DISK_GB), catalogue, f"clouds.yaml: {kind.name}")
    plan = make_plan(facts, variables.adjust_settings(settings), catalogue)
    speed = compute_output_rate(plan["throughput"], count_inputs(settings), "expected")
    if find_refusals(plan) or not speed:
        return None
    price = _find_price(kind, settings, catalogue)
    return RankedMachine(
        kind,
        plan["model"]["context"],
        speed,
        _estimate_download(kind, plan),
        _read_load_time(plan),
        driver_s,
        price.usd if price else None,
        price.spot if price else None,
        price.source if price else None,
    )


def _estimate_download(kind: CloudMachine, plan: MachinePlan) -> float:
    """Return the seconds of the download: as fast as the bucket, and as the disk that it fills."""
    disk_mb_s = float(kind.local_write_mb_s or 0)
    if not kind.local_disks:
        disk_mb_s = _DISK_MB_S + _DISK_MB_S_PER_GB * offers.choose_disk_gb(plan)
    rate = min(_BUCKET_BYTES_S, disk_mb_s * 1e6 or _BUCKET_BYTES_S)
    return float(plan["weights"]["bytes"]) / rate


def _read_load_time(plan: MachinePlan) -> float:
    return float((plan["throughput"]["load_s"] or {}).get("expected") or 0)


def _find_price(kind: CloudMachine, settings: Settings, catalogue: Catalogue) -> MachineHour | None:
    """Return the price on the terms that are tried first; None where nobody wrote it down."""
    spot = settings.cloud_terms != "on-demand"
    rows = [row for row in catalogue.prices.machine_hour if row.machine == kind.name]
    return next((row for row in rows if row.spot == spot), None)
