"""Rows of an offer's table, as lines that each say one part: by the table's head.

A head tells which column counts, and which are numbers of lines, prices or remarks. Where it names
the parts themselves, a row below it is a machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Role = Literal["count", "index", "price", "note", "part", "skip", ""]
_ROLES: tuple[tuple[Role, re.Pattern[str]], ...] = (
    (
        "count",
        re.compile(
            r"(?:qty|quantity|count|units?|pcs|pieces|nos?|antall|anzahl|menge|st\u00fcck|qt\u00e9"
            r"|quantit\u00e9|cantidad|\u6570\u91cf)\.?"
        ),
    ),
    ("index", re.compile(r"#|(?:item|line|pos|nr|no|s\.? ?no|sl\.? ?no)\.? ?#?|\u5e8f\u53f7")),
    (
        "price",
        re.compile(
            r".*(?:cost|price|total|amount|pris\b|preis|prix|precio|\busd\b|\beur\b|[$\u20ac]|\u4ef7).*"
        ),
    ),
    (
        "note",
        re.compile(
            r"(?:notes?|rationale|comments?|remarks?|reason|why.*|bemerkung\w*|\u5907\u6ce8)"
        ),
    ),
)
_PARTS = (
    ("skip", re.compile(r"(?:gpu|v|video) ?(?:mem\w*|ram)|nvlink|region|status")),
    ("GPU", re.compile(r"gpus?(?: model)?|accelerators?")),
    ("CPU", re.compile(r"cpus?(?: model)?|v?cpu|processors?")),
    ("Memory", re.compile(r"(?:system )?(?:ram|memory)")),
    ("Storage", re.compile(r"(?:local )?(?:storage|nvme|disks?|drives?|ssds?)")),
    ("Network", re.compile(r"network|nics?")),
)
_MIN_PARTS = 3
_RULE = re.compile(r"[\s|:-]+")
_OWN_COUNT = re.compile(r"\d{1,3} ?[x\u00d7*] ?\w", re.IGNORECASE)


@dataclass
class _Head:
    roles: list[Role] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    machines: int = 0


def list_lines(lines: Sequence[str]) -> Iterator[tuple[int, str, list[str]]]:
    """Yield number and text of each line, and what it says of the machine, a part in each text.

    Of several machines in a table the first counts; the others say nothing.
    """
    head: _Head | None = None
    for position, line in enumerate(lines, start=1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) < 2:
            head = None
            yield position, line, [line]
        elif _RULE.fullmatch(line) or head is None:
            head = head or _read_head(cells)
            yield position, line, [line]
        else:
            yield position, line, _split_row(line, cells, head)


def _read_head(cells: Sequence[str]) -> _Head:
    words = [re.sub(r"[*`:]", "", cell).strip().lower() for cell in cells]
    labels = [
        next((label for label, pattern in _PARTS if pattern.fullmatch(word)), "") for word in words
    ]
    if len({label for label in labels if label not in ("", "skip")}) >= _MIN_PARTS:
        return _Head(labels=labels)
    roles: list[Role] = [
        next((role for role, pattern in _ROLES if pattern.fullmatch(word)), "") for word in words
    ]
    return _Head(roles)


def _split_row(line: str, cells: Sequence[str], head: _Head) -> list[str]:
    """Return what a row says, without the columns that say nothing of a machine."""
    if head.labels:
        head.machines += 1
        named = zip(head.labels, cells, strict=False)
        first = head.machines == 1
        return [f"{label}: {cell}" for label, cell in named if label not in ("", "skip") and first]
    if not any(head.roles):
        return [line]
    by_role = list(zip(head.roles, cells, strict=False))
    kept = [cell for role, cell in by_role if role == ""]
    counted = any(map(_OWN_COUNT.match, kept))
    counts = [cell for role, cell in by_role if role == "count" and not counted]
    return [" | ".join([*kept, *counts])]
