"""Rates what a tune measured: who wins against the noise, and where a direction ends.

No figure of noise is assumed: the rounds of what serves and of a candidate show it. A candidate is
better where its slowest round is faster than the fastest round of what it is compared with, and it
wins only if that is still so against what serves, measured again at the end.

Decides: which candidate of a tune wins.
Held by: tests/unit/planner/tuning/test_rating.py.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.contract.documents.tune import TuneRound


@dataclass(frozen=True)
class Limits:
    """What each candidate has to keep, by its medians; None: no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True)
class Measured:
    """The rates of the rounds of one candidate; `keeps`: whether it keeps the limits."""

    rates: tuple[float, ...]
    keeps: bool = True

    @property
    def rate(self) -> float:
        """The median."""
        return statistics.median(self.rates)

    @property
    def low(self) -> float:
        """The slowest round."""
        return min(self.rates)

    @property
    def high(self) -> float:
        """The fastest round."""
        return max(self.rates)


def compute_rates(rows: Sequence[TuneRound], purpose: str, limits: Limits) -> Measured:
    """Rate the rounds of a load, in tokens a second.

    `rows`: a row for each round and number of requests at once. latency rates a request alone with
    the wait for its first token; throughput all requests together; balanced the geometric mean.
    """
    rounds = sorted({int(row["round"]) for row in rows})
    rates = []
    for turn in rounds:
        own = sorted(
            (row for row in rows if row["round"] == turn), key=lambda row: int(row["concurrency"])
        )
        alone, together = _compute_alone(own[0]), float(own[-1]["aggregate_tok_s"] or 0.0)
        rates.append(
            {"latency": alone, "throughput": together}.get(purpose, (alone * together) ** 0.5)
        )
    most = max(int(row["concurrency"]) for row in rows)
    loaded = [row for row in rows if int(row["concurrency"]) == most]
    keeps = _is_kept(loaded, "ttft_s", limits.ttft_s) and _is_kept(loaded, "tpot_s", limits.tpot_s)
    return Measured(tuple(rates), keeps)


def _compute_alone(row: TuneRound) -> float:
    tokens = row["output_tokens"] / max(1, row["requests"])
    first, each = row["ttft_s"]["median"], row["tpot_s"]["median"]
    seconds = (first or 0.0) + (each or 0.0) * max(0.0, tokens - 1)
    return float(tokens / seconds) if seconds > 0 else 0.0


def _is_kept(
    rows: Sequence[TuneRound], name: Literal["ttft_s", "tpot_s"], limit: float | None
) -> bool:
    values = [value for row in rows if (value := row[name]["median"]) is not None]
    return limit is None or (bool(values) and statistics.median(values) <= limit)


def is_better(one: Measured, other: Measured) -> bool:
    """Whether one is better beyond the noise; what keeps the limits is better than what does not.

    A single round is only compared where the other has one too: it cannot show its own noise.
    """
    if one.keeps != other.keeps:
        return one.keeps
    return one.low > other.high


def is_hopeless(one: Measured, best: Measured) -> bool:
    """Whether one round already shows that more rounds cannot win: as slow as the best never was.

    It lies further below the slowest round of the best than that lies below its fastest one.
    """
    if one.keeps and not best.keeps:
        return False
    return one.high < best.low - (best.high - best.low)


def combine(*measured: Measured) -> Measured:
    """Put the rounds of several measurements of the same configuration together."""
    rates = tuple(rate for one in measured for rate in one.rates)
    return Measured(rates, all(one.keeps for one in measured))


def compute_noise(measured: Measured) -> float:
    """Return the spread of the rounds as a share of their median."""
    return (measured.high - measured.low) / measured.rate if measured.rate else 0.0


def compute_start_gain(starts: Sequence[float], served: Sequence[float]) -> float:
    """Return by which share the median start of what serves takes longer."""
    own = statistics.median(starts)
    return statistics.median(served) / own - 1 if own else 0.0


def compute_gain(one: Measured, other: Measured) -> float:
    """Return by which share the median of one is above the other's."""
    return one.rate / other.rate - 1 if other.rate else 0.0
