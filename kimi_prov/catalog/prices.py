"""What the catalogue knows of prices, US dollars. Units stand in the names; None is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kimi_prov.catalog.confidence import Confidence  # noqa: TC001  (read at run time)
from kimi_prov.catalog.currency import Row


@dataclass(frozen=True)
class ApiPrice(Row):
    """What an API asks for a million tokens; `model` names a model of the catalogue."""

    name: str
    input_usd_per_mtok: float
    output_usd_per_mtok: float
    source: str
    confidence: Confidence
    model: str | None = None
    cached_input_usd_per_mtok: float | None = None
    note: str | None = None


@dataclass(frozen=True)
class GpuHour(Row):
    """What an hour of one GPU costs to own or rent, and its share of the machine's power."""

    name: str
    hyperscaler_usd: float
    neocloud_usd: float
    rental_3_years_usd: float
    power_kw: float | None
    source: str
    confidence: Confidence
    list_usd: float | None = None


@dataclass(frozen=True)
class MachineHour(Row):
    """What an hour of a whole machine was seen to cost.

    `machine` names a cloud's kind of clouds.yaml, `spot` the terms.
    """

    name: str
    gpu: str
    gpus: int
    usd: float
    source: str
    confidence: Confidence
    machine: str | None = None
    spot: bool = False


@dataclass(frozen=True)
class StoragePrice(Row):
    """What a provider asks for a gigabyte in a bucket; `name` is the scheme of its addresses."""

    name: str
    title: str
    usd_per_gb_month: float
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class Purchase(Row):
    """What one GPU was seen to cost, as a range."""

    name: str
    low_usd: float
    high_usd: float
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class Assumption(Row):
    """A figure that a cost needs and that nobody told us."""

    # What is divided by.
    NAMED_ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("amortise", "utilisation")

    name: str
    value: float
    unit: str
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class Prices:
    """What is paid, for the sums of a report. US dollars."""

    api: tuple[ApiPrice, ...] = ()
    gpu_hour: tuple[GpuHour, ...] = ()
    machine_hour: tuple[MachineHour, ...] = ()
    storage: tuple[StoragePrice, ...] = ()
    purchase: tuple[Purchase, ...] = ()
    assumptions: tuple[Assumption, ...] = ()

    def assumed(self, name: str) -> float:
        """Return a figure by name. Raises KeyError for one that is not there."""
        by_name = {row.name: row.value for row in self.assumptions}
        return by_name[name]
