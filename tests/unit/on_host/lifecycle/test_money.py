"""What a machine that is paid for by the hour has cost, by the looks of its timer."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.lifecycle import savings
from kimi_prov.on_host.system import boot

if TYPE_CHECKING:
    from pathlib import Path

PLAN: dict[str, Any] = {"rest": {"paid": {"usd_hour": 26.0, "budget_usd": 60.0}}}
ANSWERS = {"why_not": None, "used": "7", "since_s": 5.0, "looked_s": 5.0}
NOTHING = {**ANSWERS, "looked_s": 9.0}
LOADS = {"why_not": "the engine does not serve yet", "used": None, "since_s": 5.0, "looked_s": 5.0}
RESTS = {**LOADS, "why_not": "it is already asleep or stopped"}


@pytest.fixture
def places(tmp_path: Path) -> Paths:
    return Paths(tmp_path)


def passed(places: Paths, hours: float) -> None:
    """Let so much time have passed since the last look."""
    found = json.loads(places.sessions.read_text())
    found["session"]["looked_boot_s"] -= hours * 3600
    places.sessions.write_text(json.dumps(found))


def begun(places: Paths, hours_ago: float) -> None:
    """Let kimi-up have begun so long ago."""
    mark = places.locate("/var/lib/kimi-up/began")
    mark.parent.mkdir(parents=True)
    mark.write_text(f"{time.time() - hours_ago * 3600:.0f}\n")


def usd(places: Paths) -> dict[str, Any]:
    found = savings.describe_sessions(places, PLAN)
    assert found is not None
    return dict(found["session"])


def first(places: Paths) -> None:
    """A session that has just begun: what this machine was up before the test is not of it."""
    savings.count_time(places, PLAN, LOADS)
    found = json.loads(places.sessions.read_text())
    found["session"]["seconds"] = dict.fromkeys(savings.PHASES, 0.0)
    places.sessions.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("found", "phase"),
    [(ANSWERS, "serving"), (NOTHING, "idle"), (LOADS, "starting"), (RESTS, "idle")],
)
def test_hours_are_of_what_the_machine_did(
    places: Paths, found: dict[str, Any], phase: str
) -> None:
    first(places)
    passed(places, 0.5)
    savings.count_time(places, PLAN, found)
    row = usd(places)
    assert row["usd"] == row[f"{phase}_usd"] == pytest.approx(13.0, abs=0.05)
    others = {name for name in savings.PHASES if name != phase}
    assert {row[f"{name}_usd"] for name in others} <= {0.0, 0.01}


def test_starts_and_idling_are_told_apart_at_the_end(places: Paths) -> None:
    first(places)
    for found, hours in ((LOADS, 0.25), (ANSWERS, 1.0), (NOTHING, 0.5)):
        passed(places, hours)
        savings.count_time(places, PLAN, found)
    told = savings.describe_cost(places, PLAN)
    assert told.startswith("this session cost $45.5")
    assert "$6.50 of starts, $26.00 of answers, $13.00 of idling" in told


def test_the_first_session_began_before_the_drivers_restart(places: Paths) -> None:
    hours = 2 + (time.time() - boot.find_boot_time()) / 3600
    begun(places, hours)
    savings.count_time(places, PLAN, NOTHING)
    row = usd(places)
    assert row["starting_usd"] == pytest.approx(26 * hours, rel=0.01)
    assert row["usd"] == pytest.approx(26 * hours, rel=0.01)


def test_a_budget_warns_once_and_is_over_once_it_is_used_up(places: Paths) -> None:
    first(places)
    passed(places, 1.0)
    assert savings.count_time(places, PLAN, ANSWERS) == ("", False)
    passed(places, 1.0)
    near = savings.count_time(places, PLAN, ANSWERS)
    assert "this session has cost $52.0" in near.news
    assert "of a budget of $60.00" in near.news
    assert not near.over
    assert savings.count_time(places, PLAN, ANSWERS) == ("", False)
    passed(places, 1.0)
    over = savings.count_time(places, PLAN, ANSWERS)
    assert over.over
    assert "$78.0" in over.news
    assert savings.count_time(places, PLAN, ANSWERS) == ("", True)


def test_another_boot_is_another_session_and_those_before_are_kept(places: Paths) -> None:
    first(places)
    passed(places, 1.0)
    savings.count_time(places, PLAN, ANSWERS)
    found = json.loads(places.sessions.read_text())
    found["session"]["boot"] = "another"
    places.sessions.write_text(json.dumps(found))
    savings.count_time(places, PLAN, LOADS)
    document = savings.describe_sessions(places, PLAN)
    assert document is not None
    (before,) = document["before"]
    assert (before["hours"], before["usd"]) == (1.0, pytest.approx(26.0, abs=0.05))
    assert document["session"]["serving_usd"] == 0.0
    assert document["session"]["since"] >= before["since"][:10]


def test_without_a_price_nothing_is_counted(places: Paths) -> None:
    plan: dict[str, Any] = {"rest": {"idle": None}}
    assert savings.count_time(places, plan, ANSWERS) == ("", False)
    assert savings.describe_sessions(places, plan) is None
    assert savings.describe_cost(places, plan) == ""
    assert not places.sessions.exists()
