"""In which batches machines are changed: some at a time, while the others serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Machine:
    """`together`: equal for machines that serve one model together and share a batch."""

    name: str
    together: str
    serves: bool


def split_into_batches(machines: Sequence[Machine], at_once: int | None) -> list[list[str]]:
    """Return the machines' names by batch; `at_once` None makes one batch.

    `at_once` counts machines; those that serve one model together count as one. Machines that do
    not serve come first, all at once, so that faults show there before clients notice.
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
