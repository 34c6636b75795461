"""The batches in which machines are changed: some at a time, while the others serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Machine:
    """A machine; `together` is equal for machines that serve one model and share a batch."""

    name: str
    together: str
    serves: bool


def split_into_batches(machines: Sequence[Machine], at_once: int | None) -> list[list[str]]:
    """Return the machines' names by batch; `at_once` None makes one batch.

    `at_once` counts machines; those that serve one model together count as one. Machines that do
    not serve are the first batch: a failure shows there before it can reach clients.
    """
    if at_once is None:
        return [[row.name for row in machines]] if machines else []
    sets: dict[str, list[Machine]] = {}
    for row in machines:
        sets.setdefault(row.together, []).append(row)
    away = [row.name for rows in sets.values() if not _has_serving(rows) for row in rows]
    serving = [[row.name for row in rows] for rows in sets.values() if _has_serving(rows)]
    parts = [serving[first : first + at_once] for first in range(0, len(serving), at_once)]
    return [*([away] if away else []), *([name for one in part for name in one] for part in parts)]


def _has_serving(rows: Sequence[Machine]) -> bool:
    return any(row.serves for row in rows)
