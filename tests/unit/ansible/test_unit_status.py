"""What the watcher makes of a unit's state."""

from __future__ import annotations

from typing import Any

import pytest

from kimi_prov.ansible.unit_status import build_update, classify, list_warnings, make_findings

UNIT = "kimi-fetch.service"


def answer(progress: dict[str, Any] | None = None, **shown: str) -> dict[str, Any]:
    unit = {"LoadState": "loaded", "ActiveState": "active", "SubState": "exited", "Job": ""}
    return {"unit": {**unit, **shown}, "progress": progress, "journal": ["the last line"]}


FAILED = {"state": "failed", "message": "/srv/kimi/models: no space for the weights"}


def test_a_oneshot_that_is_active_is_done() -> None:
    assert classify(UNIT, answer()).state == "done"


@pytest.mark.parametrize(
    "shown",
    [
        {"ActiveState": "activating", "SubState": "start"},
        {"ActiveState": "inactive", "SubState": "dead", "Job": "812"},
        # a restart that is queued while the last run still counts as active
        {"ActiveState": "active", "SubState": "exited", "Job": "812"},
        # killed from outside: the unit starts again and goes on
        {"ActiveState": "activating", "SubState": "auto-restart"},
    ],
)
def test_a_unit_at_work_or_in_the_queue_is_waited_for(shown: dict[str, str]) -> None:
    assert classify(UNIT, answer({"state": "running"}, **shown)).state == "running"


def test_a_failure_is_told_in_the_jobs_own_sentence() -> None:
    verdict = classify(UNIT, answer(FAILED, ActiveState="failed", SubState="failed"))
    assert (verdict.state, verdict.message) == ("failed", FAILED["message"])


def test_a_source_out_of_reach_is_told_although_the_unit_tries_again() -> None:
    verdict = classify(UNIT, answer(FAILED, ActiveState="activating", SubState="auto-restart"))
    assert verdict.state == "failed"
    assert "goes on trying by itself" in verdict.message


def test_a_job_that_could_not_speak_is_explained_by_systemd() -> None:
    shown = {"ActiveState": "failed", "SubState": "failed", "Result": "oom-kill"}
    message = classify(UNIT, answer({"state": "running"}, **shown)).message
    assert "memory ran out" in message
    assert "the last line" in message


def test_a_job_whose_lines_are_known_is_told_with_cause_and_fix() -> None:
    line = "OSError: [Errno 28] No space left on device: '/srv/kimi/models/a'"
    shown = {"ActiveState": "failed", "SubState": "failed", "ExecMainStatus": "1"}
    given = {**answer(None, **shown), "journal": ["Traceback (most recent call last):", line, "x"]}
    verdict = classify(UNIT, given)
    assert verdict.message.startswith(f"{UNIT}: exit status 1; ")
    assert verdict.message.endswith(f": {line}")
    assert "df " in str(verdict.fix)


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        ({"LoadState": "not-found", "ActiveState": "inactive"}, "there is no kimi-fetch.service"),
        ({"ActiveState": "inactive", "SubState": "dead"}, "was stopped"),
    ],
)
def test_a_unit_that_is_not_at_work_is_not_waited_for(shown: dict[str, str], words: str) -> None:
    verdict = classify(UNIT, answer(None, **shown))
    assert verdict.state == "failed"
    assert words in verdict.message


def test_the_report_has_what_the_job_has_told() -> None:
    told = {"state": "running", "done_bytes": 1, "total_bytes": 2, "line": "x", "invocation": "y"}
    assert build_update("download", answer(told)) == {
        "phase": "download",
        "done_bytes": 1,
        "total_bytes": 2,
        "line": "x",
    }
    assert build_update("download", answer(None)) == {"phase": "download", "line": "starting"}


def test_what_went_otherwise_than_planned_is_told_beside_a_good_end() -> None:
    told = "node1 sent wrong bytes of a.safetensors: the source is asked for the rest"
    seen = answer({"state": "done", "message": "verified", "warnings": [told]})
    assert classify(UNIT, seen).state == "done"
    assert list_warnings(seen) == [told]
    (finding,) = make_findings(list_warnings(seen))
    assert (finding["id"], finding["severity"]) == ("weights.neighbour_left", "warning")
    assert finding["observed"] == told
    assert list_warnings(answer({"state": "done"})) == list_warnings(answer()) == []
