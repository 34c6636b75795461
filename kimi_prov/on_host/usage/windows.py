"""Decides whether a key has used enough of a minute or a day, or asks too much at once.

Times are in seconds of one clock, of any kind; a minute is any sixty seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.contract.key_rules import PARALLEL, PARALLEL_WAIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MINUTE_S = 60
DAY_S = 86400
# Second, and its requests and tokens; the oldest first.
Row = tuple[float, int, int]


@dataclass(frozen=True)
class Refusal:
    """The limit that a key has reached, and in how many seconds it may ask again."""

    reason: str
    wait_s: int


def check_minute(rows: Sequence[Row], limits: Mapping[str, int], now: float) -> Iterator[Refusal]:
    """Return the limits of a minute that the rows of the last minute reach."""
    requests = [(at, number) for at, number, _ in rows]
    tokens = [(at, number) for at, _, number in rows]
    for counts, reason in ((requests, "requests_per_minute"), (tokens, "tokens_per_minute")):
        if reason in limits:
            yield from _wait_for_room(counts, limits[reason], reason, now)


def _wait_for_room(
    counts: Sequence[tuple[float, int]], limit: int, reason: str, now: float
) -> Iterator[Refusal]:
    """Return the refusal until the last minute holds less than the limit again.

    `counts`: second and number, the oldest first.
    """
    used = sum(count for _, count in counts)
    if used < limit:
        return
    for at, count in counts:
        used -= count
        if used < limit:
            # After this many seconds, this second and those before it are a minute ago.
            yield Refusal(reason, max(math.ceil(at + MINUTE_S - now), 1))
            return


def check_day(used: Sequence[int], limits: Mapping[str, int], now: float) -> Iterator[Refusal]:
    """Return the limits of a day that its counts reach; `now` in seconds since 1970."""
    for number, reason in zip(used, ("requests_per_day", "tokens_per_day")):
        if reason in limits and number >= limits[reason]:
            yield Refusal(reason, math.ceil(DAY_S - now % DAY_S) or 1)


def check_unconfirmed_day(
    used: Sequence[int], untold: Sequence[Row], limits: Mapping[str, int], now: float
) -> Iterator[Refusal]:
    """Return the limit of a day that is reached only by requests that no machine has reported yet.

    It holds until enough of them are a minute ago, and not for the day: perhaps no machine answers
    them.
    """
    left = limits.get("requests_per_day", 0) - used[0]
    if left > 0:
        counts = [(at, requests) for at, requests, _ in untold]
        yield from _wait_for_room(counts, left, "requests_per_day", now)


def check_parallel(under_way: int, limits: Mapping[str, int]) -> Iterator[Refusal]:
    """Return the limit of requests at once, where so many others are under way."""
    if under_way >= limits.get(PARALLEL, math.inf):
        yield Refusal(PARALLEL, PARALLEL_WAIT_S)


def find_newest(rows: Sequence[Row], count: int) -> list[Row]:
    """Return the last `count` requests of rows: earlier requests are reported first."""
    found: list[Row] = []
    for at, requests, tokens in reversed(rows):
        if count <= 0:
            break
        found.append((at, min(requests, count), tokens))
        count -= requests
    return found[::-1]


def find_longest(found: Sequence[Refusal]) -> Refusal | None:
    """Return the limit that blocks a key the longest; None where it may ask."""
    return max(found, key=lambda refusal: refusal.wait_s, default=None)
