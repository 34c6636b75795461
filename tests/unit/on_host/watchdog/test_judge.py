"""What is done about an engine, by the looks at it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kimi_prov.on_host.watchdog.classify import Limits, Question, Sample, What, classify

LIMITS = Limits(quiet=60, computing=60, ask=40, every=10)
PROMPT = replace(LIMITS, computing=600)
START = "first"


def still(
    seconds: int, *, steps: float = 7.0, waits: int = 2, cpu: float = 0.0, begin: int = 0
) -> list[Sample]:
    """A look every ten seconds at an engine that makes no step; `cpu`: processors that it uses."""
    return [
        Sample(at, START, steps={"tokens": steps}, waits=waits, cpu=cpu * at)
        for at in range(begin, begin + seconds + 1, 10)
    ]


def test_nobody_waits_for_an_engine_without_requests() -> None:
    assert classify(still(3600, waits=0), LIMITS).what is What.IDLE


def test_an_engine_whose_steps_come_works() -> None:
    rows = [Sample(at, START, steps={"tokens": float(at)}, waits=1) for at in range(0, 600, 10)]
    assert classify(rows, LIMITS).what is What.WORKS


def test_a_long_prompt_moves_the_use_of_the_cache_and_is_no_hang() -> None:
    rows = [
        Sample(at, START, steps={"tokens": 7.0, "cache": at / 50_000}, waits=1)
        for at in range(0, 6000, 50)
    ]
    limits = replace(LIMITS, every=50)
    assert {classify(rows[:count], limits).what for count in range(2, len(rows))} == {What.WORKS}


def test_it_is_asked_after_the_time_of_a_step_and_not_before() -> None:
    assert classify(still(50), LIMITS).what is What.WAIT
    verdict = classify(still(60), LIMITS)
    assert verdict.what is What.ASK
    assert verdict.still == 60


def test_it_hangs_once_our_question_has_no_answer_either() -> None:
    rows = still(90)
    asked = Question(61.0)
    assert classify([*rows, replace(rows[-1], at=100, question=asked)], LIMITS).what is What.ASKED
    verdict = classify([*rows, replace(rows[-1], at=101, question=asked)], LIMITS)
    assert verdict.what is What.HANGS
    assert "no answer to our own question for 40 s" in verdict.why


def test_a_refusal_is_no_answer_and_it_is_asked_again() -> None:
    rows = still(70)
    refused = Question(61.0, pending=False, problem="500 the engine is dead")
    assert classify([*rows, replace(rows[-1], at=75, question=refused)], LIMITS).what is What.ASK
    verdict = classify(
        [*rows, *still(40, begin=80)[:-1], replace(rows[-1], at=110, question=refused)], LIMITS
    )
    assert verdict.what is What.HANGS
    assert "the engine is dead" in verdict.why


def test_a_step_while_we_ask_is_a_sign_of_life() -> None:
    rows = still(90)
    moved = Sample(100, START, steps={"tokens": 8.0}, waits=2, question=Question(61.0))
    assert classify([*rows, moved], LIMITS).what is What.WORKS
    # The question of before is none of the time after that step.
    later = [replace(moved, at=100 + more) for more in range(10, 70, 10)]
    assert classify([*rows, moved, *later], LIMITS).what is What.ASK


def test_an_answer_begins_the_time_anew_where_no_count_moved() -> None:
    rows = [replace(row, answered=65.0) for row in still(120)]
    assert classify(rows, LIMITS).what is What.WAIT
    rows = [replace(row, answered=65.0) for row in still(130)]
    assert classify(rows, LIMITS).what is What.ASK


def test_a_prompt_that_is_one_step_has_its_time_while_the_processors_compute() -> None:
    assert classify(still(590, cpu=1.0), PROMPT).what is What.WAIT
    assert classify(still(600, cpu=1.0), PROMPT).what is What.ASK
    # As it was seen of an engine whose worker was stopped.
    assert classify(still(60, cpu=0.003), PROMPT).what is What.ASK


def test_an_engine_that_has_stopped_computing_is_asked_after_the_time_of_a_step() -> None:
    """Behind a web server that stopped, an engine still computes what it was given."""
    computed = [replace(row, steps=None) for row in still(100, cpu=1.0)]
    ended = [replace(row, steps=None, cpu=100.0) for row in still(60, begin=110)]
    assert classify([*computed, *ended[:-2]], PROMPT).what is What.WAIT
    assert classify([*computed, *ended], PROMPT).what is What.ASK


def test_an_engine_that_begins_to_compute_after_a_pause_has_its_time() -> None:
    begun = [replace(row, cpu=row.at - 300) for row in still(20, begin=310)]
    assert classify([*still(300), *begun], PROMPT).what is What.WAIT


def test_a_web_server_that_tells_nothing_is_suspected_with_nobody_at_the_proxy() -> None:
    rows = [Sample(at, START, steps=None) for at in range(0, 70, 10)]
    assert classify(rows[:-1], LIMITS).what is What.WAIT
    assert classify(rows, LIMITS).what is What.ASK


def test_an_engine_that_tells_of_no_request_is_suspected_where_the_proxy_has_one() -> None:
    """A worker that stood still before the request came: the engine tells of none."""
    idle = still(300, waits=0)
    assert classify([*idle, *still(60, begin=310, waits=1)], LIMITS).what is What.ASK


@pytest.mark.parametrize("held", ["kimi-serve@0.service is activating", "somebody applies"])
def test_nothing_is_judged_while_it_is_held_and_the_time_begins_anew_after(held: str) -> None:
    rows = still(300)
    quiet = Sample(310, START, held=held)
    assert classify([*rows, quiet], LIMITS).what is What.QUIET
    assert classify([*rows, quiet, *still(50, begin=320)], LIMITS).what is What.WAIT


def test_another_start_is_another_engine() -> None:
    again = [replace(row, start="second") for row in still(50, begin=310)]
    assert classify([*still(300), *again], LIMITS).what is What.WAIT


def test_the_time_in_which_nobody_looked_counts_for_nothing() -> None:
    """The machine stood still itself, or the watchdog did."""
    assert classify([*still(50), *still(50, begin=300)], LIMITS).what is What.WAIT


def test_in_a_group_the_supervisor_asks() -> None:
    limits = replace(LIMITS, asks=False)
    assert classify(still(50), limits).what is What.WAIT
    assert classify(still(60), limits).what is What.HANGS
