"""The order of a tune, its early stops, and its end, with machines of which the speed is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tune_inputs import Machine

if TYPE_CHECKING:
    from kimi_prov.planner.tuning.session import Session


def states(session: Session) -> dict[str, str]:
    return {row.label: row.state for row in session.rows}


def test_the_best_of_two_settings_is_found_from_a_bad_start() -> None:
    machine = Machine(lambda requests, threads: 10.0 * min(requests, 4) * min(threads, 4))
    session = machine.tune()
    assert session.winner is not None
    assert dict(session.winner.variables) == {"concurrency": 4, "threads": 4}
    assert session.winner.state == "wins"
    assert session.winner.gain is not None
    assert 6.5 < session.winner.gain < 7.5
    # The first and the last is what serves, and so what is left running.
    assert [trial.plan for trial in (machine.trials[0], machine.trials[-1])] == [None, None]
    assert not machine.trials[0].start
    assert machine.trials[-1].start


def test_a_direction_ends_where_it_loses_and_the_other_is_not_tried_after_a_gain() -> None:
    peak = {1: 10.0, 2: 20.0, 4: 5.0, 8: 1.0}
    session = Machine(lambda requests, _: peak[requests]).tune("requests")
    assert states(session) == {
        "2 requests at once": "wins",
        "4 requests at once": "slower",
        "8 requests at once": "left out",
    }


def test_a_hopeless_candidate_gets_one_round() -> None:
    machine = Machine(lambda requests, _: 10.0 / requests)
    machine.tune("requests")
    assert [trial.rounds for trial in machine.trials] == [3, 1]


def test_a_gain_within_the_noise_is_none_and_no_lines_come_of_it() -> None:
    session = Machine(lambda requests, _: 10.0 + requests / 100).tune("requests")
    assert session.winner is None
    assert set(states(session).values()) == {"no gain"}


def test_a_best_that_what_serves_reaches_in_the_end_does_not_win() -> None:
    machine = Machine(lambda requests, _: 10.0 * requests)
    slow = machine.speed
    machine.speed = lambda requests, threads: (
        slow(requests, threads) if len(machine.trials) < 8 else 80.0
    )
    session = machine.tune("requests")
    assert session.winner is None
    assert "noise" in session.note


def test_a_candidate_that_fails_or_answers_otherwise_cannot_win() -> None:
    machine = Machine(lambda requests, _: 10.0 * requests)
    machine.failing["2 requests at once"] = "out of memory"
    session = machine.tune("requests")
    assert states(session)["2 requests at once"] == "failed"
    assert session.winner is None
    other = Machine(lambda requests, _: 10.0 * requests)
    other.likely["2 requests at once"] = 0.1
    row = other.tune("requests").rows[0]
    assert row.state == "failed"
    assert row.reason is not None
    assert "answers otherwise" in row.reason


def test_what_no_time_is_left_for_is_said() -> None:
    machine = Machine(lambda requests, _: 10.0 * requests, seconds=100.0)
    machine.left = 850.0
    session = machine.tune("requests")
    assert "no time" in states(session).values()
    assert session.again is not None


def test_the_end_of_the_time_leaves_no_winner() -> None:
    machine = Machine(lambda requests, _: 10.0 * requests, seconds=1.0)
    machine.left = 1.0
    session = machine.tune("requests")
    assert session.winner is None


def test_nothing_is_tried_where_what_serves_cannot_be_measured() -> None:
    machine = Machine(lambda requests, _: 10.0)
    machine.failing["what serves"] = "none of 8 requests was answered"
    session = machine.tune()
    assert session.rows == []
    assert "none of 8 requests" in session.note


def test_a_loader_wins_by_its_starts_beyond_their_noise() -> None:
    machine = Machine(lambda _requests, _threads: 10.0, seconds=20.0)
    machine.quick["weights read by eager"] = 4.0
    session = machine.tune("load-format")
    assert list(states(session).values()) == ["no gain", "wins"]
    assert session.winner is not None
    assert session.winner.variables["engine_args"] == {"safetensors-load-strategy": "eager"}
    assert session.winner.gain == 1.5
    assert "takes 4 s" in (session.winner.reason or "")
