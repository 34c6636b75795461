"""What a status of all hosts tells of those that wait for a head that sleeps."""

from __future__ import annotations

from typing import Any

import pytest

from kimi_prov.commands.group_rests import judged

HEAD = {"ok": True, "state": "asleep", "detail": "asleep", "group": {"rank": 0, "head": "gpu1"}}


def rank(**more: object) -> dict[str, Any]:
    group = {"rank": 1, "head": "gpu1", "phase": "waiting"}
    found = {"ok": False, "state": "serving", "detail": "waiting for gpu1, the head"}
    return {**found, "group": group, **more}


def test_a_host_that_waits_for_a_head_that_sleeps_is_asleep_and_well() -> None:
    found = judged({"gpu1": HEAD, "gpu2": rank()})
    assert found["gpu1"] == HEAD
    assert (found["gpu2"]["ok"], found["gpu2"]["state"]) == (True, "asleep")
    assert "gpu1" in found["gpu2"]["detail"]


@pytest.mark.parametrize(
    "documents",
    [
        # The head was stopped by a person, who stops all of them; or it shall serve.
        {"gpu1": {**HEAD, "state": "stopped"}, "gpu2": rank()},
        {"gpu1": {**HEAD, "state": "starting"}, "gpu2": rank()},
        # Nobody asked the head.
        {"gpu2": rank()},
        {"gpu1": HEAD, "gpu2": rank(state="failed", detail="not active: kimi-rank.service")},
        {"gpu1": HEAD, "other": {"ok": False, "state": "serving", "group": None}},
    ],
)
def test_others_are_left_as_they_are(documents: dict[str, Any]) -> None:
    assert judged(documents) == documents
