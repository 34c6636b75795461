"""How many machines carry a load, by the curve of one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kimi_prov.sizing import curve as curves
from kimi_prov.sizing.demand import compute_use, count_tokens_a_day, size_load
from kimi_prov.sizing.load import Load, make_load

SPREAD = {"low": 0.8, "expected": 1.0, "high": 1.25}


def row(requests: int, step_ms: float, ttft_s: float) -> dict[str, Any]:
    """A row of a curve; speeds are 0.8 to 1.25 times what is expected, times likewise."""

    def span(value: float) -> dict[str, float]:
        return {case: value * factor for case, factor in SPREAD.items()}

    return {
        "concurrency": requests,
        "decode_tok_s": span(1000 / step_ms),
        "aggregate_tok_s": span(1000 / step_ms * requests),
        "prefill_tok_s": span(8000),
        "ttft_s": span(ttft_s),
    }


# A step of 10 ms and 1 ms for each request, a first token after half a second for each.
CURVE = [row(n, 10 + n, 0.5 * n) for n in (1, 2, 4, 8, 16, 32, 40)]


def test_between_two_points_a_step_takes_as_much_longer_as_requests_were_added() -> None:
    found = curves.find_row(CURVE, 24)
    assert found is not None
    assert found["decode_tok_s"]["expected"] == pytest.approx(1000 / 34)
    assert found["aggregate_tok_s"]["expected"] == pytest.approx(24 * 1000 / 34)
    assert found["ttft_s"]["expected"] == pytest.approx(12)
    assert curves.find_row(CURVE, 500) == CURVE[-1]
    assert curves.find_row([], 4) is None


@pytest.mark.parametrize(
    ("users", "machines", "share"), [(1, 1, 1), (40, 1, 40), (41, 2, 21), (400, 10, 40)]
)
def test_as_many_machines_as_hold_the_requests_in_their_caches(
    users: int, machines: int, share: int
) -> None:
    found = size_load(CURVE, Load(users=users), serves=True)
    assert found["machines"] == dict.fromkeys(curves.CASES, machines)
    assert (found["requests_a_machine"], found["most_requests"]) == (share, 40)
    assert found["bound_by"] == "users"


def test_a_limit_on_tokens_takes_more_machines_and_gives_a_range() -> None:
    # 30 ms: 20 requests as expected, 14 at the slow end (24 ms), 27 at the fast end (37.5 ms).
    found = size_load(CURVE, Load(users=40, tpot_ms=30), serves=True)
    assert found["machines"] == {"low": 2, "expected": 2, "high": 3}
    assert found["bound_by"] == "tpot"
    assert found["most_requests"] == 20
    assert found["tpot_ms"]["expected"] == pytest.approx(30)
    assert found["tpot_ms"]["low"] < 30 < found["tpot_ms"]["high"]


def test_a_limit_on_the_first_token_binds_likewise() -> None:
    found = size_load(CURVE, Load(users=40, ttft_s=5, tpot_ms=45), serves=True)
    assert (found["most_requests"], found["bound_by"]) == (10, "ttft")
    assert found["machines"]["expected"] == 4


def test_tokens_a_day_bind_where_the_users_need_fewer_machines() -> None:
    load = Load(users=100, tokens_per_day=210e6, input_tokens=1000, output_tokens=1000)
    found = size_load(CURVE, load, serves=True)
    # 3 machines with 33 or 34 requests give 198 million a day, 4 with 25 each (35 ms a step, each
    # after its prompt at 8000 tokens/s: 712 tokens/s) give 246 million.
    assert found["machines"] == {"low": 3, "expected": 4, "high": 5}
    assert found["requests_a_machine"] == 25
    assert found["bound_by"] == "tokens_per_day"
    alone = size_load(CURVE, Load(tokens_per_day=1e6), serves=True)
    assert (alone["machines"]["expected"], alone["bound_by"]) == (1, "tokens_per_day")
    assert alone["requests_a_machine"] == 40


def test_no_number_of_machines_gives_more_tokens_a_day_than_the_users_take() -> None:
    # One request alone: 90.9 tokens/s, its prompt read at 8000: 89.9 tokens/s, 7.8 million a day.
    load = Load(users=4, tokens_per_day=38e6, input_tokens=1000, output_tokens=1000)
    found = size_load(CURVE, load, serves=True)
    assert found["machines"] == {"low": 4, "expected": None, "high": None}
    assert found["bound_by"] == "tokens_per_day"
    enough = size_load(CURVE, replace(load, tokens_per_day=31e6), serves=True)
    assert (enough["machines"]["expected"], enough["requests_a_machine"]) == (4, 1)
    assert count_tokens_a_day(CURVE, load, "expected", 4) == pytest.approx(31.1e6, rel=0.01)


def test_tokens_a_day_tell_for_how_much_of_the_day_the_machines_work() -> None:
    load = Load(tokens_per_day=20e6, input_tokens=1000, output_tokens=1000)
    found = size_load(CURVE, load, serves=True)
    # 40 requests at 20 tokens/s, each after its prompt at 8000: 798 tokens/s, 68.9 million a day.
    assert compute_use(CURVE, load, found) == pytest.approx(20 / 68.9, rel=0.01)
    assert compute_use(CURVE, Load(users=4), size_load(CURVE, Load(users=4), serves=True)) is None


def test_an_assumed_length_gives_way_to_a_short_context() -> None:
    short = Load(users=1, output_tokens=500, assumed=frozenset({"input_tokens"}))
    assert short.fits(4096)
    assert not short.fits(500)
    assert not Load(users=1, input_tokens=4000, output_tokens=500).fits(4096)


def test_a_limit_that_one_request_alone_breaks_is_named_with_what_it_reaches() -> None:
    found = size_load(CURVE, Load(users=4, tpot_ms=10), serves=True)
    assert found["machines"]["expected"] is None
    assert found["bound_by"] == "tpot"
    assert found["tpot_ms"]["expected"] == pytest.approx(11)
    slow_end = size_load(CURVE, Load(users=4, tpot_ms=12), serves=True)
    assert slow_end["machines"]["expected"] is not None
    assert slow_end["machines"]["high"] is None
    fast_end = size_load(CURVE, Load(users=4, ttft_s=0.45), serves=True)
    assert fast_end["machines"] == {"low": 4, "expected": None, "high": None}


@pytest.mark.parametrize(("curve", "serves"), [(CURVE, False), ([], True)])
def test_what_does_not_serve_carries_nothing(curve: list[dict[str, Any]], *, serves: bool) -> None:
    found = size_load(curve, Load(users=4), serves=serves)
    assert found["bound_by"] == "nothing serves it"
    assert found["machines"]["expected"] is None


def test_a_load_says_what_was_assumed() -> None:
    assert make_load({"users": None, "ttft_s": None}, 16, 0.25) is None
    load = make_load({"ttft_s": 2.0, "output_tokens": 500}, 16, 0.25)
    assert load is not None
    found = load.document()
    assert found["users"] == {"value": 16, "assumed": True}
    assert found["ttft_s"] == {"value": 2.0, "assumed": False}
    assert found["output_tokens"] == {"value": 500, "assumed": False}
    assert found["input_tokens"] == {"value": 8192, "assumed": True}
    assert found["tpot_ms"] is None


def test_the_pace_is_that_of_the_slower_of_one_alone_and_each_of_many() -> None:
    assert curves.classify_pace(CURVE, 40) == "chat"
    assert curves.classify_pace([row(1, 50, 1), row(16, 200, 9)], 16) == "slow"
    assert curves.classify_pace([row(1, 50, 1), row(16, 2000, 9)], 16) == "batch"
    assert curves.classify_pace([], 16) is None


@pytest.mark.parametrize(("people", "users"), [(1, 1), (20, 5), (41, 11)])
def test_of_people_a_share_asks_at_once_and_a_part_of_one_is_one(people: int, users: int) -> None:
    load = make_load({"people": people}, 16, 0.25)
    assert load is not None
    found = load.document()
    assert found["people"] == {"value": people, "assumed": False}
    assert found["users"] == {"value": users, "assumed": True}
