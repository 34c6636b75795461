"""Who wins against the noise."""

from __future__ import annotations

from typing import Any

import pytest

from kimi_prov.planner.tuning import rating
from kimi_prov.planner.tuning.rating import Limits, Measured


def row(turn: int, at_once: int, **values: Any) -> dict[str, Any]:
    return {
        "round": turn,
        "concurrency": at_once,
        "requests": 2,
        "output_tokens": 20,
        "ttft_s": {"median": 0.5, "p99": None},
        "tpot_s": {"median": 0.1, "p99": None},
        "aggregate_tok_s": 40.0,
        **values,
    }


def test_each_purpose_rates_its_own_speed() -> None:
    rows = [row(1, 1), row(1, 8, aggregate_tok_s=90.0)]
    alone = 10 / (0.5 + 9 * 0.1)
    assert rating.compute_rates(rows, "latency", Limits()).rates == pytest.approx((alone,))
    assert rating.compute_rates(rows, "throughput", Limits()).rates == (90.0,)
    both = rating.compute_rates(rows, "balanced", Limits()).rates
    assert both == pytest.approx(((alone * 90.0) ** 0.5,))


def test_limits_are_kept_by_the_medians_under_the_whole_load() -> None:
    rows = [row(turn, 8, tpot_s={"median": 0.1 * turn, "p99": None}) for turn in (1, 2, 3)]
    assert rating.compute_rates(rows, "throughput", Limits(tpot_s=0.2)).keeps
    assert not rating.compute_rates(rows, "throughput", Limits(tpot_s=0.15)).keeps
    assert not rating.compute_rates(rows, "throughput", Limits(ttft_s=0.1)).keeps


def test_better_is_only_what_lies_above_every_round_of_the_other() -> None:
    now = Measured((10.0, 11.0, 12.0))
    assert not rating.is_better(Measured((11.5, 14.0, 15.0)), now)
    assert rating.is_better(Measured((12.5, 14.0, 15.0)), now)
    assert rating.is_better(Measured((1.0,)), Measured((10.0,), keeps=False))
    assert not rating.is_better(Measured((99.0,), keeps=False), now)


def test_one_round_far_below_the_best_ends_a_candidate_and_a_near_one_does_not() -> None:
    best = Measured((10.0, 11.0, 12.0))
    assert rating.is_hopeless(Measured((7.0,)), best)
    assert not rating.is_hopeless(Measured((9.0,)), best)
    assert not rating.is_hopeless(Measured((7.0,)), Measured((10.0,), keeps=False))


def test_noise_is_the_spread_of_all_rounds_together() -> None:
    both = rating.combine(Measured((10.0, 11.0)), Measured((9.0, 12.0)))
    assert rating.compute_noise(both) == pytest.approx(3 / 10.5)
    assert rating.compute_gain(Measured((21.0,)), both) == pytest.approx(1.0)
