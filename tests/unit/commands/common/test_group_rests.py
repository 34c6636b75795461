"""What a status of all hosts tells of those that wait for a head that sleeps."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kimi_prov.commands.common.group_lifecycle import mark_sleeping_ranks
from kimi_prov.on_host.group import lifecycle

WAITS = "waiting for gpu1, the head"
SINCE = "2026-11-28T06:00:00Z"
HEAD = {
    "ok": True,
    "state": "asleep",
    "detail": "asleep",
    "rest": {"since": SINCE},
    "group": {"rank": 0, "head": "gpu1"},
}


def rank(phase: str = "waiting", said: str = WAITS, **more: object) -> dict[str, Any]:
    group = {"rank": 1, "head": "gpu1", "phase": phase, "said": said}
    return {"ok": False, "state": "starting", "detail": said, "group": group, **more}


@pytest.mark.parametrize(
    ("head", "phase", "state"),
    [
        ("stopping", "waiting", "asleep"),
        ("asleep", "waiting", "asleep"),
        ("starting", "waiting", "starting"),
        ("starting", "starting", "starting"),
    ],
)
def test_a_host_that_waits_for_a_head_that_sleeps_or_is_woken_is_well(
    head: str, phase: str, state: str
) -> None:
    sleeper = {**HEAD, "state": head}
    found = mark_sleeping_ranks({"gpu1": sleeper, "gpu2": rank(phase)})
    assert found["gpu1"] == sleeper
    assert (found["gpu2"]["ok"], found["gpu2"]["state"]) == (True, state)
    does = "is asleep" if state == "asleep" else "is being woken, asleep"
    assert found["gpu2"]["detail"] == f"gpu1, the head, {does} since {SINCE}"
    assert found["gpu2"]["rest"]["since"] == SINCE


ENDED = {
    "detail": "not active: kimi-rank.service",
    "units": {"kimi-rank.service": {"state": "activating"}},
}
SOON, LATE = (datetime(2026, 11, 28, 6, minute, 0, tzinfo=UTC) for minute in (6, 7))


@pytest.mark.parametrize("head", ["stopping", "asleep"])
@pytest.mark.parametrize("unit", ["activating", "deactivating"])
def test_a_host_that_ended_with_a_head_that_falls_asleep_is_well(head: str, unit: str) -> None:
    """As long as the head may wait for requests; later one whose unit ends again is not."""
    units = {"units": {"kimi-rank.service": {"state": unit}}}
    documents = {"gpu1": {**HEAD, "state": head}, "gpu2": rank("", **{**ENDED, **units})}
    found = mark_sleeping_ranks(documents, SOON)["gpu2"]
    assert (found["ok"], found["state"]) == (True, "asleep")
    assert mark_sleeping_ranks(documents, LATE)["gpu2"]["ok"] == (head == "stopping")


@pytest.mark.parametrize("since", ["yesterday", 1795845600, True, "2026-11-28T06:00:00"])
def test_a_head_that_tells_no_time_changes_nothing(since: object) -> None:
    documents = {"gpu1": {**HEAD, "rest": {"since": since}}, "gpu2": rank("", **ENDED)}
    assert mark_sleeping_ranks(documents, SOON) == documents


@pytest.mark.parametrize(
    "lacks",
    [
        {"units": {"kimi-rank.service": {"state": "failed"}}},
        {"detail": "not active: kimi-rank.service, kimi-firewall.service"},
        {"units": ["kimi-rank.service"]},
        {"units": {"kimi-rank.service": "activating"}},
    ],
    ids=["failed", "more", "no units", "no unit"],
)
def test_one_that_lacks_more_than_its_unit_s_next_start_is_left(lacks: dict[str, Any]) -> None:
    documents = {"gpu1": HEAD, "gpu2": rank("", **{**ENDED, **lacks})}
    assert mark_sleeping_ranks(documents, SOON) == documents


@pytest.mark.parametrize(
    "documents",
    [
        # The head was stopped by a person, who stops all of them; or it shall serve.
        {"gpu1": {**HEAD, "state": "stopped"}, "gpu2": rank()},
        {"gpu1": {**HEAD, "state": "starting", "rest": {"since": None}}, "gpu2": rank("starting")},
        {"gpu1": HEAD, "gpu2": rank("stopped")},
        # Nobody asked the head.
        {"gpu2": rank()},
        {"gpu1": HEAD, "gpu2": rank(detail="not active: kimi-firewall.service")},
        {"gpu1": HEAD, "gpu2": rank(said=f"gpu1 refuses this host; {lifecycle.NOT_EQUAL}")},
        {"gpu1": HEAD, "other": {"ok": False, "state": "serving", "group": None}},
    ],
)
def test_others_are_left_as_they_are(documents: dict[str, Any]) -> None:
    assert mark_sleeping_ranks(documents) == documents
