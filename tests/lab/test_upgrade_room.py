"""An upgrade where the disk has no room for both: refused, or in place where that is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from machines import kimi_prov
from upgrades import DEEP, SECOND, Shaken, applying, changed, history, streaming
from waiting import until

from kimi_prov.contract import paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LARGE = {
    "kimi_model": DEEP,
    "kimi_weights_source": f"file:///opt/models/{DEEP}",
    # Its random weights think without end.
    "kimi_engine_args": {"reasoning-parser": None},
}
# What the plan keeps free beside what comes, and less than the model that comes.
LEAVE_BYTES = 1_000_000_000 + 5_000_000
SLOW = 500_000


@pytest.fixture
def full(shaken: Shaken, tmp_path: Path) -> Iterator[Shaken]:
    """The host serves a large model, and its disk has no room for a small one beside it."""
    done = changed(shaken.host, tmp_path, LARGE)
    assert done.returncode == 0, done.stdout + done.stderr
    shaken.host.ssh(f"rm -rf {paths.MODELS}/{SECOND}")
    shaken.disk.fill(LEAVE_BYTES)
    try:
        yield shaken
    finally:
        shaken.disk.free()


def small(shaken: Shaken, **more: object) -> dict[str, Any]:
    """Settings of the small model."""
    return {"kimi_model": SECOND, "kimi_weights_source": shaken.web.url, **more}


def test_no_room_for_both_is_a_blocker_and_in_place_removes_what_serves(
    full: Shaken, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    host = full.host
    before = host.ssh("cat /etc/kimi/plan.json")
    with streaming(host, record_property) as client:
        done = changed(host, tmp_path, small(full))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "disk.room" in done.stderr
    assert "kimi_upgrade_in_place" in done.stderr
    assert host.ssh("cat /etc/kimi/plan.json") == before
    assert client.away_s == 0

    with streaming(host, record_property):
        done = changed(host, tmp_path, small(full, kimi_upgrade_in_place=True))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "upgrade.in_place" in done.stdout + done.stderr
    assert DEEP not in host.ssh(f"ls {paths.MODELS}")
    found = history(host)
    assert (found["entries"][-1]["result"], found["switch"]) == ("done", None)
    assert found["entries"][-1]["serves"]["model"] == SECOND
    gone = next(row for row in reversed(found["entries"]) if row["serves"]["model"] == DEEP)
    assert not gone["restorable"]
    back = kimi_prov("rollback", host.inventory, "--limit", host.name, "--to", str(gone["number"]))
    assert back.returncode == 1
    assert "its weights are gone" in back.stderr
    assert full.answers()
    assert "changed=0" in changed(host, tmp_path, small(full, kimi_upgrade_in_place=True)).stdout


def test_one_in_place_that_is_killed_is_completed_by_the_next(
    full: Shaken, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Nothing serves between: that is what the setting allows."""
    settings = small(full, kimi_upgrade_in_place=True)
    full.web.behaviour.served.clear()
    full.web.behaviour.rate = SLOW
    with streaming(full.host, record_property):
        with applying(full.host, tmp_path, settings) as run:
            run.reaches(lambda: sum(full.web.behaviour.served.values()) > 1 << 20, "weights")
            run.kill()
        full.web.behaviour.rate = None
        done = changed(full.host, tmp_path, settings)
        assert done.returncode == 0, done.stdout + done.stderr
        assert until(full.answers)
