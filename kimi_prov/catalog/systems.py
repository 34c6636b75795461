"""Operating systems of the catalogue. Units stand in the names; None is unknown."""

from __future__ import annotations

from dataclasses import dataclass

from kimi_prov.catalog.confidence import Confidence  # noqa: TC001  (read at run time)
from kimi_prov.catalog.currency import Row


@dataclass(frozen=True)
class System(Row):
    """An operating system as it is delivered; `proven` if the tests provision one."""

    id: str
    version: str
    proven: bool
    source: str
    confidence: Confidence
    glibc: str | None = None
    python: str | None = None
    kernel: str | None = None
    nvidia_driver: str | None = None
