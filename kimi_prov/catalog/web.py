"""Versions of the web UI, each an environment of its own. Units stand in the names."""

from __future__ import annotations

from dataclasses import dataclass

from kimi_prov.catalog.confidence import Confidence  # noqa: TC001  (read at run time)
from kimi_prov.catalog.currency import Row
from kimi_prov.catalog.names import PathName  # noqa: TC001  (read at run time)


@dataclass(frozen=True)
class WebUi(Row):
    """One version of a web UI and its requirements. Sizes in bytes.

    `install_peak_bytes`: the disk room of the installation. `memory_bytes`: resident after the
    start. `licence`: its name, and what an operator has to know about it.
    """

    name: PathName
    variant: PathName
    version: PathName
    python: tuple[PathName, ...]
    glibc: str
    arch: tuple[str, ...]
    installed_bytes: int
    install_peak_bytes: int
    memory_bytes: int
    licence: str
    source: str
    confidence: Confidence
    note: str | None = None

    def lock_name(self, python: str) -> str:
        """Return the name of the lock file for a Python such as "3.11"."""
        tag = "cp" + python.replace(".", "")
        return f"{self.name}-{self.variant}-{self.version}-{tag}.txt"
