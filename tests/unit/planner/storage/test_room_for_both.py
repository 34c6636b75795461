"""Room for a new version beside the one that serves, or the setting that does without."""

from __future__ import annotations

from typing import Any

import pytest
from plan_inputs import blocked_by, found, lab_facts, plan

OTHER = "/srv/kimi/models/other/r"


def document(*, free_bytes: int, other_bytes: int, **settings: object) -> dict[str, Any]:
    """The plan for a machine that has another model's weights, and so much room."""
    facts = lab_facts()
    for row in facts["filesystems"]:
        row["free_bytes"] = free_bytes
    facts["kimi"]["models"] = [{"dir": OTHER, "disk_bytes": other_bytes}]
    return plan(facts, **settings)


def test_no_room_for_both_is_a_blocker_that_names_both_ways() -> None:
    made = document(free_bytes=1 << 20, other_bytes=1 << 40)
    assert "disk.room" in blocked_by(made)
    fix = found(made, "disk.room")[0]["fix"]
    assert "kimi-prov clean" in fix
    assert "kimi_upgrade_in_place" in fix
    assert made["upgrade"]["frees"] == []


def test_in_place_the_former_weights_go_first_and_that_is_told() -> None:
    made = document(free_bytes=1 << 20, other_bytes=1 << 40, upgrade_in_place=True)
    assert "disk.room" not in blocked_by(made)
    assert made["upgrade"]["frees"] == [OTHER]
    (row,) = found(made, "upgrade.in_place")
    assert row["severity"] == "warning"


@pytest.mark.parametrize("free", [1 << 20, 1 << 42])
def test_in_place_frees_nothing_that_would_not_do_or_is_not_needed(free: int) -> None:
    made = document(free_bytes=free, other_bytes=1 << 10, upgrade_in_place=True)
    assert made["upgrade"]["frees"] == []
    assert ("disk.room" in blocked_by(made)) is (free < 1 << 30)
