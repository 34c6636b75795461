"""The catalogue's prices in US dollars. Units are in the names; None is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from kimi_prov.catalog.confidence import Confidence  # noqa: TC001  (read at run time)
from kimi_prov.catalog.currency import Row


@dataclass(frozen=True)
class ApiPrice(Row):
    """An API's price of a million tokens; `model` names a model of the catalogue."""

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
    """The cost of an hour of one GPU, owned or rented, and its share of the machine's power."""

    name: str
    hyperscaler_usd: float
    neocloud_usd: float
    rental_3_years_usd: float
    power_kw: float | None
    source: str
    confidence: Confidence
    list_usd: float | None = None


@dataclass(frozen=True)
class Rent(Row):
    """What an hour of one GPU is offered for, on demand: lowest, usual and highest.

    `source` names at least three dated ones, separated by semicolons.
    """

    name: str
    low_usd: float
    usual_usd: float
    high_usd: float
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class MachineHour(Row):
    """The observed price of an hour of a whole machine.

    `machine` names a machine of clouds.yaml, `spot` the terms.
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
    """A provider's price of a gigabyte in a bucket; `name` is the scheme of its addresses."""

    name: str
    title: str
    usd_per_gb_month: float
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class Purchase(Row):
    """The observed price of one GPU, as a range."""

    name: str
    low_usd: float
    high_usd: float
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class PartPrice(Row):
    """The observed price of a part that is no GPU, as a range: of one piece, or of one `unit`.

    `name` is that of a processor in cpus.yaml, or the kind of memory as sheets write it.
    """

    name: str
    unit: Literal["piece", "GB"]
    low_usd: float
    high_usd: float
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class Assumption(Row):
    """An assumed figure that a cost needs."""

    # Divisors, which must not be 0.
    NAMED_ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("amortise", "utilisation")

    name: str
    value: float
    unit: str
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class Prices:
    """The prices for the costs of a report, in US dollars."""

    api: tuple[ApiPrice, ...] = ()
    gpu_hour: tuple[GpuHour, ...] = ()
    rent: tuple[Rent, ...] = ()
    machine_hour: tuple[MachineHour, ...] = ()
    storage: tuple[StoragePrice, ...] = ()
    purchase: tuple[Purchase, ...] = ()
    parts: tuple[PartPrice, ...] = ()
    assumptions: tuple[Assumption, ...] = ()

    def find_rent(self, gpu: str) -> Rent | None:
        """Find what an hour of a GPU costs, by the catalogue's name; None where nobody said."""
        return next((row for row in self.rent if row.name == gpu), None)

    def find_part(self, name: str) -> PartPrice | None:
        """Find the price of a processor, or of a GB of memory; None is "no price"."""
        return next((row for row in self.parts if row.name == name), None)

    def assumed(self, name: str) -> float:
        """Return a figure by name. Raises KeyError for an unknown one."""
        by_name = {row.name: row.value for row in self.assumptions}
        return by_name[name]
