"""CPU lists and node lists in the kernel's format: `0-3,8`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Linux has at most 8192 CPUs.
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def parse_list(text: str | None) -> list[int]:
    """Return `0-3,8` as [0, 1, 2, 3, 8]; what is not a number is left out."""
    matches = (_RANGE.fullmatch(part.strip()) for part in (text or "").split(","))
    spans = {(int(m.group(1)), int(m.group(2) or m.group(1))) for m in matches if m}
    numbers: list[int] = []
    for first, last in sorted(spans):
        # Each number once, however often the text repeats it.
        numbers.extend(range(max(first, numbers[-1] + 1) if numbers else first, last + 1))
    return numbers


def format_list(numbers: Sequence[int]) -> str:
    """Return [0, 1, 2, 3, 8] as `0-3,8`: the kernel's format."""
    parts: list[str] = []
    ordered = sorted(set(numbers))
    start = 0
    for position in range(len(ordered)):
        last = position + 1 == len(ordered)
        if last or ordered[position + 1] != ordered[position] + 1:
            first, end = ordered[start], ordered[position]
            parts.append(str(first) if first == end else f"{first}-{end}")
            start = position + 1
    return ",".join(parts)
