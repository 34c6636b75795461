"""Whether a key has used enough of a minute or a day: decisions alone, without effects.

Times are in seconds of one clock, whichever; a minute is any sixty seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MINUTE_S = 60
DAY_S = 86400
# Second, requests and tokens of it; the oldest first.
Row = tuple[float, int, int]


@dataclass(frozen=True)
class Refusal:
    """Which limit a key has reached, and in how many seconds it may ask again."""

    reason: str
    wait_s: int


def check_minute(rows: Sequence[Row], limits: Mapping[str, int], now: float) -> Iterator[Refusal]:
    """Give the limits of a minute that rows of the last one reach."""
    requests = [(at, number) for at, number, _ in rows]
    tokens = [(at, number) for at, _, number in rows]
    for counts, reason in ((requests, "requests_per_minute"), (tokens, "tokens_per_minute")):
        if reason in limits:
            yield from _wait_for_room(counts, limits[reason], reason, now)


def _wait_for_room(
    counts: Sequence[tuple[float, int]], limit: int, reason: str, now: float
) -> Iterator[Refusal]:
    """Give the refusal until so much of the last minute has passed that less than a limit is left.

    `counts`: second and number, the oldest first.
    """
    used = sum(count for _, count in counts)
    if used < limit:
        return
    for at, count in counts:
        used -= count
        if used < limit:
            # So many seconds on, this second and those before it are a minute ago.
            yield Refusal(reason, max(math.ceil(at + MINUTE_S - now), 1))
            return


def check_day(used: Sequence[int], limits: Mapping[str, int], now: float) -> Iterator[Refusal]:
    """Give the limits of a day that its requests and tokens reach; `now` in seconds since 1970."""
    for number, reason in zip(used, ("requests_per_day", "tokens_per_day")):
        if reason in limits and number >= limits[reason]:
            yield Refusal(reason, math.ceil(DAY_S - now % DAY_S) or 1)


def check_unconfirmed_day(
    used: Sequence[int], untold: Sequence[Row], limits: Mapping[str, int], now: float
) -> Iterator[Refusal]:
    """Give the limit of a day that only requests reach of which nobody knows yet who answers them.

    It holds until so many of them are a minute ago, and not for the day: perhaps nobody does.
    """
    left = limits.get("requests_per_day", 0) - used[0]
    if left > 0:
        counts = [(at, requests) for at, requests, _ in untold]
        yield from _wait_for_room(counts, left, "requests_per_day", now)


def find_newest(rows: Sequence[Row], count: int) -> list[Row]:
    """Return the last `count` requests of rows: those before them were told of first."""
    found: list[Row] = []
    for at, requests, tokens in reversed(rows):
        if count <= 0:
            break
        found.append((at, min(requests, count), tokens))
        count -= requests
    return found[::-1]


def find_longest(found: Sequence[Refusal]) -> Refusal | None:
    """Return the limit that keeps a key out the longest; None where it may ask."""
    return max(found, key=lambda refusal: refusal.wait_s, default=None)
