"""What the machine tells of prepared weights, and what `clean` takes of them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from kimi_prov.contract import paths as layout
from kimi_prov.on_host.drift import weights as drift
from kimi_prov.on_host.history import clean
from kimi_prov.on_host.system import plans
from kimi_prov.on_host.weights import prepared

if TYPE_CHECKING:
    import pytest
    from applied_machine import Applied

KEPT, OLD = f"{layout.PREPARED}/0123456789abcdef", f"{layout.PREPARED}/fedcba9876543210"


def plan_them(machine: Applied) -> None:
    """Have the machine's plan name the folder, and an engine have written into it."""
    plan = json.loads(machine.places.plan.read_text())
    section = {"enabled": True, "reason": "asked for", "dir": KEPT, "bytes": 1, "manifest": None}
    machine.put(layout.PLAN, json.dumps({**plan, "prepared_weights": section}), 0o640)
    machine.put(f"{KEPT}/0/rank-tp0-a.prepared", "x" * 9000)
    machine.put(f"{KEPT}/0/rank-tp0-a.prepared.damaged", "x" * 9000)
    machine.put(f"{KEPT}/0/.rank-tp0-b.prepared.7.partial", "x")
    machine.places.locate(KEPT).chmod(0o700)


def test_status_counts_what_counts(machine: Applied) -> None:
    assert prepared.build_status(machine.places, plans.read_plan(machine.places.plan)) is None
    plan_them(machine)
    told = prepared.build_status(machine.places, plans.read_plan(machine.places.plan))
    assert told is not None
    assert (told["planned"], told["files"], told["put_aside"]) == (True, 1, 1)
    assert told["bytes"] >= 18000


def test_clean_takes_folders_of_no_version_and_damaged_files(machine: Applied) -> None:
    plan_them(machine)
    machine.entry()
    machine.put(f"{OLD}/0/rank-tp0-a.prepared", "x")
    done = clean.remove_unneeded(machine.places, remove=True)
    assert [(row["kind"], row["path"]) for row in done["items"]] == [
        ("prepared", f"{KEPT}/0/rank-tp0-a.prepared.damaged"),
        ("prepared", OLD),
    ]
    left = [p.name for p in machine.places.locate(layout.PREPARED).rglob("*") if p.is_file()]
    assert sorted(left) == [".rank-tp0-b.prepared.7.partial", "rank-tp0-a.prepared"]


def test_clean_takes_files_of_older_keys_and_of_engines_that_are_no_more(machine: Applied) -> None:
    plan_them(machine)
    machine.entry()
    for at, name in enumerate(
        ("0/rank-tp0-M-b", "0/rank-tp0-M-c", "0/rank-tp1-M-b", "7/rank-tp0-M-c")
    ):
        machine.put(f"{KEPT}/{name}.prepared", "x")
        os.utime(machine.places.locate(f"{KEPT}/{name}.prepared"), (at, at))
    told = prepared.build_status(machine.places, plans.read_plan(machine.places.plan))
    assert told is not None
    assert (told["put_aside"], told["older"]) == (1, 1)
    # No file is changed: another key takes nothing from the plan.
    folder = machine.places.locate(KEPT)
    kinds = {row.subject for row in drift.list_prepared_differences(folder)}
    assert not any("rank-tp0-M" in one for one in kinds)
    done = clean.remove_unneeded(machine.places, remove=True)
    assert [(row["path"], row["of"]) for row in done["items"]] == [
        (f"{KEPT}/0/rank-tp0-M-b.prepared", "older key rank-tp0-M-b.prepared"),
        (f"{KEPT}/0/rank-tp0-a.prepared.damaged", "damaged rank-tp0-a.prepared.damaged"),
        (f"{KEPT}/7/rank-tp0-M-c.prepared", "no engine rank-tp0-M-c.prepared"),
    ]
    left = [path.name for path in folder.rglob("rank-*.prepared")]
    assert sorted(left) == ["rank-tp0-M-c.prepared", "rank-tp0-a.prepared", "rank-tp1-M-b.prepared"]


def test_drift_tells_owner_and_mode_damaged_files_and_a_lost_folder(
    machine: Applied, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_them(machine)
    folder = machine.places.locate(KEPT)
    monkeypatch.setattr(layout, "USER", folder.owner())
    [aside] = drift.list_prepared_differences(folder)
    assert aside.subject.endswith(".damaged")
    assert aside.fix == "kimi-prov clean INVENTORY"
    folder.chmod(0o755)
    mode, _ = drift.list_prepared_differences(folder)
    assert mode.observed == f"{folder.owner()} 0755"
    lost = machine.places.locate(OLD)
    assert [row.observed for row in drift.list_prepared_differences(lost)] == ["absent"]


def test_clean_follows_no_link_that_an_engine_s_user_has_put_there(machine: Applied) -> None:
    plan_them(machine)
    machine.entry()
    other = machine.places.locate("/srv/elsewhere")
    machine.put("/srv/elsewhere/rank-tp0-a.prepared.damaged", "x")
    kept = machine.places.locate(KEPT)
    (kept / "1").symlink_to(other)
    listed = clean.list_unneeded(machine.places)
    assert [row["path"] for row in listed] == [f"{KEPT}/0/rank-tp0-a.prepared.damaged"]
    # Between the list and the removal.
    (kept / "0").rename(kept / "2")
    (kept / "0").symlink_to(other)
    prepared.remove_file(kept / "0" / "rank-tp0-a.prepared.damaged")
    prepared.remove_file(kept / "3" / "rank-tp0-a.prepared.damaged")
    assert (other / "rank-tp0-a.prepared.damaged").exists()
    prepared.remove_file(kept / "2" / "rank-tp0-a.prepared.damaged")
    assert not (kept / "2" / "rank-tp0-a.prepared.damaged").exists()
