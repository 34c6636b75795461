"""How versions of engines treat their flags. Units are in the names; None is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kimi_prov.catalog.confidence import Confidence  # noqa: TC001  (read at run time)
from kimi_prov.catalog.currency import Row

Verdict = Literal["accepted", "deprecated", "rejected", "fails"]


@dataclass(frozen=True)
class Flag(Row):
    """How versions of an engine treat a flag, or one value of it.

    `becomes`: the flag that replaces it in a plan if it is not accepted, "nothing" if none is
    needed; None if a person has to decide.
    """

    engine: str
    flag: str
    versions: dict[str, Verdict]
    source: str
    confidence: Confidence
    value: str | None = None
    replacement: str | None = None
    becomes: str | None = None
    reason: str | None = None
    default: str | None = None


@dataclass(frozen=True)
class FlagSet(Row):
    """Flags that all of these versions of an engine accept."""

    engine: str
    name: str
    versions: tuple[str, ...]
    flags: tuple[str, ...]
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class FlagState:
    """The answer for one flag at one version."""

    flag: str
    status: Verdict | Literal["unknown"]
    replacement: str | None = None
    reason: str | None = None
    source: str | None = None
    becomes: str | None = None
