"""CPU lists and node lists in the kernel's format: `0-3,8`."""

from __future__ import annotations

import re
from typing import List, Optional, Sequence

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def parse_list(text: Optional[str]) -> List[int]:
    """Return `0-3,8` as [0, 1, 2, 3, 8]; what is not a number is left out."""
    numbers: List[int] = []
    for part in (text or "").split(","):
        match = _RANGE.fullmatch(part.strip())
        if match:
            first = int(match.group(1))
            numbers.extend(range(first, int(match.group(2) or first) + 1))
    return sorted(set(numbers))


def format_list(numbers: Sequence[int]) -> str:
    """Return [0, 1, 2, 3, 8] as `0-3,8`: the kernel's format."""
    parts: List[str] = []
    ordered = sorted(set(numbers))
    start = 0
    for position in range(len(ordered)):
        last = position + 1 == len(ordered)
        if last or ordered[position + 1] != ordered[position] + 1:
            first, end = ordered[start], ordered[position]
            parts.append(str(first) if first == end else f"{first}-{end}")
            start = position + 1
    return ",".join(parts)
