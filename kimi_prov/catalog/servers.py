"""Common servers, as sheets to start from. Units are in the names; None is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from kimi_prov.catalog.confidence import Confidence  # noqa: TC001  (read at run time)
from kimi_prov.catalog.currency import Row


@dataclass(frozen=True)
class ServerDisks:
    """Disks of one kind; `size_gb` of one disk, as sold: 10^9 bytes."""

    size_gb: float
    count: int = 1
    kind: Literal["nvme", "ssd", "hdd", "network"] = "nvme"

    ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("size_gb", "count")


@dataclass(frozen=True)
class ServerNics:
    """Network cards of one speed."""

    speed_gbit_s: float
    count: int = 1

    ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("speed_gbit_s", "count")


@dataclass(frozen=True)
class Server(Row):
    """A server as its vendor sells it, or as it is usually bought.

    `cpu` and `gpu` are names of the catalogue. Memory is `dimms` modules of `dimm_gb` GiB, or
    `memory_gb` GiB where it is soldered.
    """

    name: str
    title: str
    cpu: str
    sockets: int
    source: str
    confidence: Confidence
    dimms: int | None = None
    dimm_gb: int | None = None
    memory_gb: int | None = None
    memory_mt_s: int | None = None
    gpu: str | None = None
    gpus: int = 0
    disks: tuple[ServerDisks, ...] = ()
    nics: tuple[ServerNics, ...] = ()
    os: str | None = None
    aliases: tuple[str, ...] = ()
    note: str | None = None

    ABOVE_ZERO: ClassVar[tuple[str, ...]] = (
        "sockets",
        "dimms",
        "dimm_gb",
        "memory_gb",
        "memory_mt_s",
    )
