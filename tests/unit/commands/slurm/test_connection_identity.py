"""Whom a connection follows, and which server is another one."""

from __future__ import annotations

from typing import Any

import pytest

from kimi_prov.commands.slurm.connect import Identity, decide_step


def row(number: str, state: str | None, shown: str | None, successor: str | None = None) -> Any:
    told = {"state": shown, "certificate_sha256": f"c{number}", "successor": successor}
    return {"id": number, "state": state, "reason": None, "endpoint": told if shown else None}


@pytest.mark.parametrize(
    ("servers", "to", "ends"),
    [
        ([row("1", "RUNNING", "ready")], None, False),
        ([row("2", "RUNNING", "ready"), row("1", "RUNNING", "draining")], None, False),
        ([row("2", "RUNNING", "ready"), row("1", None, "ended")], "2", False),
        ([row("2", "PENDING", None), row("1", None, "lost")], None, False),
        ([row("1", "PENDING", None)], None, False),
        ([row("1", "NODE_FAIL", "lost")], None, True),
        ([row("1", "COMPLETING", "ended")], None, True),
        ([], None, True),
    ],
)
def test_whom_it_follows(servers: list[Any], to: str | None, ends: bool) -> None:
    step = decide_step(servers, Identity("1", "c1"))
    assert (step.to and step.to["id"], step.ends) == (to, ends)


def test_a_job_that_was_queued_again_is_another_server() -> None:
    again = row("1", "RUNNING", "ready")
    step = decide_step([again], Identity("1", "of before"))
    assert step.to is again
