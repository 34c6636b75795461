"""A switch is open from before the first change until the verdict, and leads back from anywhere."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.history import applied, entries, report, switch

if TYPE_CHECKING:
    from conftest import Applied

DROP_IN = f"{layout.UNITS}/kimi-serve@0.service.d/10-plan.conf"
RUN = {
    "run": "r1",
    "by": {"user": "ann", "control_host": "desk"},
    "inventory": "hosts.yml",
    "kimi_prov": "1",
    "min_speed": None,
    "drain_s": 0,
}


def begin(machine: Applied, **more: object) -> dict[str, Any]:
    return switch.begin(machine.places, {**RUN, "start_s": 60, "frees": [], **more})


def end(machine: Applied, *, done: bool = True, **more: object) -> dict[str, Any]:
    return switch.end(machine.places, {**RUN, "done": done, "keep": 2, **more})


def newest(machine: Applied) -> dict[str, Any]:
    return entries.every(machine.places)[-1]


@pytest.fixture(autouse=True)
def _own_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(switch.apply_lock, "release", lambda run: {"held": False})


def test_where_nothing_serves_there_is_nothing_to_go_back_to(machine: Applied) -> None:
    machine.runs("failed")
    assert begin(machine)["opened"] is False
    assert switch.read(machine.places) == {}


def test_what_serves_is_noted_before_anything_changes(machine: Applied) -> None:
    found = begin(machine)
    assert (found["opened"], found["from"], found["to"]) == (True, 1, 2)
    former, entry = entries.every(machine.places)
    assert former["kind"] == entries.FOUND
    assert entries.restorable(machine.places, former) is None
    assert (entry["result"], entry["by"]["user"]) == (None, "ann")
    assert switch.read(machine.places)["phase"] == switch.WRITING


def test_the_last_entry_is_what_serves_where_nothing_else_is_in_place(machine: Applied) -> None:
    machine.entry()
    assert begin(machine)["from"] == 1
    assert [row["kind"] for row in entries.every(machine.places)] == ["apply", "apply"]


@pytest.mark.parametrize(("version", "told"), [("1", "former"), ("2", "new"), ("", "none")])
def test_the_next_run_says_which_serves_and_takes_the_switch_over(
    machine: Applied, version: str, told: str
) -> None:
    begin(machine)
    machine.version("2")
    machine.runs("active", version)
    found = begin(machine, run="r2")
    assert found["interrupted"]["serves"] == told
    assert (found["from"], found["to"]) == (1, 3)
    assert entries.read(machine.places, 2)["result"] == entries.INTERRUPTED


def test_a_switch_that_is_at_work_is_left_alone(machine: Applied) -> None:
    begin(machine)
    machine.places.at("/switch").write_text("ActiveState=activating\n")
    with pytest.raises(HostError, match="still under way"):
        begin(machine, run="r2")
    assert newest(machine)["result"] is None


def test_a_machine_that_joins_others_with_an_open_switch_has_none_after(machine: Applied) -> None:
    begin(machine)
    assert switch.read(machine.places)
    found = begin(machine, run="r2", together=True)
    assert (found["opened"], found["interrupted"]["entry"]) == (False, 2)
    assert switch.read(machine.places) == {}
    assert entries.read(machine.places, 2)["result"] == entries.INTERRUPTED
    # One that is at work is waited for.
    begin(machine, run="r3")
    machine.places.at("/switch").write_text("ActiveState=activating\n")
    with pytest.raises(HostError, match="still under way") as raised:
        begin(machine, run="r4", together=True)
    assert "journalctl -fu kimi-switch" in str(raised.value.fix)


def test_a_boot_puts_back_what_served(machine: Applied) -> None:
    machine.put(layout.FIREWALL, "of the former plan", 0o640)
    wants = machine.places.units / "multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "kimi-serve@0.service").symlink_to("../kimi-serve@.service")
    begin(machine)
    machine.version("2")
    more = machine.put(f"{layout.UNITS}/kimi-serve@1.service.d/10-plan.conf", "[Service]\n")
    machine.put(layout.FIREWALL, "of the new plan", 0o640)

    told = switch.boot(machine.places)

    assert "entry 1" in told
    assert machine.in_place == "1"
    assert not more.exists()
    entry = newest(machine)
    assert (entry["result"], entry["returned_to"]) == (entries.RETURNED, 1)
    assert switch.read(machine.places) == {}
    assert "daemon-reload" in machine.told
    # The firewall was up before.
    assert "try-reload-or-restart --no-block kimi-firewall.service" in machine.told
    # A boot's own jobs were made before: what is enabled is asked for, and nothing waited for.
    orders = [line for line in machine.told if line.startswith(("start", "restart", "stop"))]
    assert all(line.startswith("start --no-block ") for line in orders)
    assert "kimi-serve@0.service" in orders[0].split()
    assert switch.boot(machine.places) == "no switch was cut"
    # The run that it cut hears of it, and no other.
    assert end(machine, done=False)["told"] == [told]
    assert end(machine, done=False, run="r2")["told"] == []


def test_an_apply_that_fails_before_the_switch_goes_back(
    machine: Applied, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switch, "wait", lambda *_: None)
    monkeypatch.setattr(switch, "verify", lambda *_: [])
    begin(machine)
    machine.version("2")

    found = end(machine, done=False)

    assert "went back by itself to entry 1" in found["told"][0]
    assert machine.in_place == "1"
    assert newest(machine)["result"] == entries.RETURNED
    assert applied.read(machine.places) == {}


def test_where_the_former_does_not_serve_either_both_reasons_are_told(
    machine: Applied, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise HostError("the disk is gone")

    monkeypatch.setattr(switch, "wait", fails)
    begin(machine)
    machine.version("2")
    with pytest.raises(HostError, match=r"too slow.*that does not serve either: the disk is gone"):
        switch.go_back(machine.places, switch.read(machine.places), "too slow", lambda _: None)
    assert machine.in_place == "1"
    assert newest(machine)["result"] == entries.FAILED


def test_a_way_back_that_fails_is_left_open_for_the_next(machine: Applied) -> None:
    machine.entry()
    begin(machine)
    machine.version("2")
    entries.copy_of(machine.places, entries.read(machine.places, 1), DROP_IN).unlink()
    with pytest.raises(HostError, match=r"too slow. The way back failed: .*has lost"):
        switch.go_back(machine.places, switch.read(machine.places), "too slow", lambda _: None)
    assert switch.read(machine.places)["phase"] == switch.RETURNING


def test_a_switch_that_was_cut_in_the_middle_goes_back(
    machine: Applied, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switch, "wait", lambda *_: None)
    monkeypatch.setattr(switch, "verify", lambda *_: [])
    begin(machine)
    machine.version("2")
    state = switch.read(machine.places)
    switch._write(machine.places, {**state, "phase": switch.SWITCHING})
    with pytest.raises(HostError, match="the switch was cut"):
        switch.switch(machine.places, lambda _: None)
    assert machine.in_place == "1"


def test_an_apply_is_noted_once(machine: Applied) -> None:
    assert end(machine)["entry"] == 1
    there = applied.read(machine.places)
    assert (there["entry"], there["by"]["user"]) == (1, "ann")
    assert end(machine)["entry"] == 1
    assert applied.read(machine.places) == there
    machine.version("2")
    assert end(machine)["entry"] == 2
    assert len(entries.every(machine.places)) == 2


def test_an_apply_that_failed_is_not_what_was_applied(machine: Applied) -> None:
    end(machine)
    machine.version("2")
    assert end(machine, done=False)["entry"] is None
    assert applied.read(machine.places)["entry"] == 1


def test_a_rollback_takes_the_last_that_served_something_else(machine: Applied) -> None:
    for version in ("1", "2", "3"):
        machine.version(version)
        machine.entry()
    machine.entry(entries.FAILED)
    found = switch.rollback(machine.places, {**RUN, "to": None})
    assert found["restores"] == 2
    state = switch.read(machine.places)
    assert (state["kind"], state["from"], state["restores"]) == (entries.ROLLBACK, 3, 2)
    assert state["start_s"] == 60


@pytest.mark.parametrize(
    ("number", "why"), [(9, "no entry 9"), (2, "is what is in place"), (1, "cannot be put back")]
)
def test_a_rollback_says_why_it_does_not_go_there(machine: Applied, number: int, why: str) -> None:
    machine.entry()
    machine.version("2", model="b")
    machine.entry()
    machine.places.at(f"{layout.MODELS}/a/r/{layout.MODEL_VERIFIED}").unlink()
    with pytest.raises(HostError, match=why):
        switch.rollback(machine.places, {**RUN, "to": number})
    assert switch.read(machine.places) == {}


def test_without_room_for_both_the_former_is_removed_and_there_is_no_way_back(
    machine: Applied,
) -> None:
    gone = f"{layout.MODELS}/a/r"
    found = begin(machine, frees=[gone])
    assert (found["opened"], found["freed"]) == (False, [gone])
    assert not machine.places.at(gone).exists()
    assert "stop kimi-serve@0.service" in machine.told


@pytest.mark.parametrize("name", ["/etc", f"{layout.MODELS}/../../etc", layout.MODELS])
def test_nothing_is_removed_but_weights_and_environments(machine: Applied, name: str) -> None:
    with pytest.raises(HostError, match="is not below"):
        begin(machine, frees=[name])


def test_the_report_tells_of_an_entry_that_nobody_ended(machine: Applied) -> None:
    machine.entry()
    begin(machine)
    document = report.collect(machine.places)
    assert [row["result"] for row in document["entries"]] == ["done", None]
    assert (document["switch"]["entry"], document["switch"]["serves"]) == (2, "former")
    machine.places.switch.unlink()
    document = report.collect(machine.places)
    assert document["entries"][-1]["result"] == entries.INTERRUPTED
    assert document["switch"] is None


def test_what_a_way_back_needs_is_not_pruned(machine: Applied) -> None:
    """A run with --tags leaves a cut switch open, and says so."""
    begin(machine)
    number = switch.read(machine.places)["from"]
    for version in ("2", "3"):
        machine.version(version)
        told = end(machine, run="r2", keep=1)["told"]
        assert "without --tags" in told[0]
    assert entries.kept(machine.places, entries.read(machine.places, number))


def test_a_rollback_drops_no_version(machine: Applied) -> None:
    end(machine)
    machine.version("2")
    assert end(machine, run="r2", keep=None)["dropped"] == []
    machine.version("3")
    assert end(machine, run="r3", keep=1)["dropped"] == [1, 2]


def test_a_boot_leaves_what_is_there_where_the_former_is_not_kept(machine: Applied) -> None:
    begin(machine)
    machine.version("2")
    state = switch.read(machine.places)
    shutil.rmtree(entries.folder(machine.places, state["from"]) / "files")
    assert "no files any more" in switch.boot(machine.places)
    assert machine.in_place == "2"
    assert switch.read(machine.places) == {}


def test_the_lock_is_released_where_nothing_can_be_noted(
    machine: Applied, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = []
    monkeypatch.setattr(switch.apply_lock, "release", released.append)
    machine.places.applied.mkdir(parents=True)
    with pytest.raises(OSError, match="applied"):
        end(machine)
    assert len(released) == 1
