"""What `status` says of a machine that rests, as text: also that it is what the schema has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import closed_form
import pytest

from kimi_prov.contract.documents.status.lifecycle import RestStatus
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import stop_log, stop_state
from kimi_prov.on_host.lifecycle import status
from kimi_prov.on_host.system import files
from kimi_prov.show.text import status as status_text

if TYPE_CHECKING:
    from pathlib import Path

POWER = {"idle_kw": 2.0, "usd_per_kwh": 0.15}
IDLE = {"after_s": 1800, "action": "stop", "hook": None}
PLAN: dict[str, Any] = {
    "model": {"name": "m", "serve_dir": "/nowhere"},
    "instances": [{"index": 0}],
    "rest": {"memory": "free", "idle": IDLE, "wake": "refuse", "power": POWER},
}
START = {"model": "m", "at": "2026-11-24T06:00:00Z", "by": "wake", "seconds": 60.0}


PAID: dict[str, Any] = {
    **PLAN,
    "rest": {**PLAN["rest"], "paid": {"usd_hour": 20.0, "budget_usd": 50.0}},
}


@pytest.fixture
def places(tmp_path: Path) -> Paths:
    made = Paths(tmp_path)
    made.idle.parent.mkdir(parents=True)
    return made


def told(places: Paths, plan: dict[str, Any] = PLAN) -> str:
    """The text, made of a document that keeps to its type."""
    document = status.build_document(places, plan, stop_state.read(places))
    closed_form.validate_part(document, RestStatus)
    return " ".join(" ".join(status_text._format_lifecycle(document)).split())


def test_what_all_rests_saved_is_told(places: Paths) -> None:
    made = stop_state.build_state(stop_state.ASLEEP, "nobody asked")
    for hours in (3, 7):
        stop_log.record_rest(places, {**made, "since_boot_s": made["since_boot_s"] - hours * 3600})
    assert "rested 2 times, 10 h: at most 20 kWh and $3.00 saved" in told(places)
    stop_state.write(places, {**made, "since_boot_s": made["since_boot_s"] - 10 * 3600})
    assert "rested 3 times, 20 h: at most 40 kWh and $6.00 saved" in told(places)


def test_when_it_will_rest_and_why_it_did_not_are_told(places: Paths) -> None:
    assert "after 30 min without a request; not checked yet" in told(places)
    now = files.read_json(places.idle) | {"looked_s": stop_log.time.monotonic()}
    files.write_json(str(places.idle), {**now, "asleep_in_s": 720, "why_not": None})
    assert "asleep in 12 min, if nobody asks until then" in told(places)
    files.write_json(str(places.idle), {**now, "asleep_in_s": 60, "failed": "the cloud said no"})
    assert "; the last time it failed: the cloud said no" in told(places)


def test_the_first_answers_are_told_by_where_the_weights_were(places: Paths) -> None:
    rows = [
        {**START, "id": "a", "held": "disk", "first_token_s": 200.0},
        {**START, "id": "b", "held": "RAM disk", "first_token_s": 50.0},
        {**START, "id": "c", "held": "disk", "first_token_s": 130.0},
        {**START, "id": "d", "held": "page cache", "by": "start"},
        {**START, "id": "e", "held": "page cache", "model": "other", "first_token_s": 1.0},
    ]
    files.make_directory(places.state, 0o700)
    files.write_json(str(places.starts), {"starts": rows})
    assert "50.0 s (RAM disk), 2:10 (disk) from the first request to an answer" in told(places)


def test_a_request_that_could_not_wake_it_is_told(places: Paths) -> None:
    stop_state.write(
        places,
        stop_state.build_state(
            stop_state.ASLEEP, "nobody asked", failed="kimi-serve@0 failed: oom"
        ),
    )
    assert "woken in vain: kimi-serve@0 failed: oom" in told(places)


@pytest.mark.parametrize(("hours", "said"), [(1, ""), (2.1, "; NEARLY USED UP"), (3, "; USED UP")])
def test_what_the_session_cost_is_told_against_its_budget(
    places: Paths, hours: float, said: str
) -> None:
    seconds = {"starting": 900.0, "serving": (hours - 0.25) * 3600, "idle": 0.0}
    session = {"boot": "b", "since": "2026-11-24T06:00:00Z", "until": None, "seconds": seconds}
    before = {"since": "2026-11-23T06:00:00Z", "until": "2026-11-23T08:00:00Z"}
    rows = [{**before, "seconds": {"starting": 3600.0, "serving": 3600.0, "idle": 0.0}}]
    files.write_json(str(places.sessions), {"session": session, "before": rows})
    text = told(places, PAID)
    share = round(100 * hours * 20 / 50)
    assert f"cost ${hours * 20:.2f} since 2026-11-24T06:00:00Z ({hours:g} h at $20.00)" in text
    assert f"starts $5.00, answers ${(hours - 0.25) * 20:.2f}, idling $0.00" in text
    assert f"{share} % of a budget of $50.00{said}" in text
    assert "before 1 session, $40.00; the last $40.00 in 2 h until 2026-11-23T08:00:00Z" in text
