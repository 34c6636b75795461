"""Whether a key has used enough of a minute or a day: decisions alone, without effects.

Times are in seconds of one clock, whichever; a minute is any sixty seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Iterator, Mapping, Optional, Sequence, Tuple

MINUTE_S = 60
DAY_S = 86400
# Second, requests and tokens of it; the oldest first.
Row = Tuple[float, int, int]


@dataclass(frozen=True)
class Refusal:
    """Which limit a key has reached, and in how many seconds it may ask again."""

    reason: str
    wait_s: int


def of_minute(rows: Sequence[Row], limits: Mapping[str, int], now: float) -> Iterator[Refusal]:
    """Give the limits of a minute that rows of the last one reach."""
    for column, reason in ((1, "requests_per_minute"), (2, "tokens_per_minute")):
        limit = limits.get(reason)
        used = sum(row[column] for row in rows)
        if limit is None or used < limit:
            continue
        for row in rows:
            used -= row[column]
            if used < limit:
                # So many seconds on, this second and those before it are a minute ago.
                yield Refusal(reason, max(math.ceil(row[0] + MINUTE_S - now), 1))
                break


def of_day(used: Sequence[int], limits: Mapping[str, int], now: float) -> Iterator[Refusal]:
    """Give the limits of a day that its requests and tokens reach; `now` in seconds since 1970."""
    for number, reason in zip(used, ("requests_per_day", "tokens_per_day")):
        if reason in limits and number >= limits[reason]:
            yield Refusal(reason, math.ceil(DAY_S - now % DAY_S) or 1)


def longest(found: Sequence[Refusal]) -> Optional[Refusal]:
    """Return the limit that keeps a key out the longest; None where it may ask."""
    return max(found, key=lambda refusal: refusal.wait_s, default=None)
