"""A switch is open from before the first change until the verdict, and leads back from anywhere."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.history import (
    applied,
    close_switch,
    engines,
    entries,
    group_switch,
    open_switch,
    report,
    rollback,
    switch,
    unit,
)
from kimi_prov.on_host.history import start_switch as beginning

if TYPE_CHECKING:
    from pathlib import Path

    from applied_machine import Applied

DROP_IN = f"{layout.UNITS}/kimi-serve@0.service.d/10-plan.conf"
RUN = {
    "run": "r1",
    "by": {"user": "ann", "control_host": "desk"},
    "inventory": "hosts.yml",
    "kimi_prov": "1",
    "min_speed": None,
    "drain_s": 0,
    "group": [],
}


def begin(machine: Applied, **more: object) -> dict[str, Any]:
    return beginning.start(machine.places, {**RUN, "start_s": 60, "frees": [], **more})


def end(machine: Applied, *, done: bool = True, **more: object) -> dict[str, Any]:
    return close_switch.close(machine.places, {**RUN, "done": done, "keep": 2, **more})


def newest(machine: Applied) -> dict[str, Any]:
    return entries.read_all(machine.places)[-1]


@pytest.fixture(autouse=True)
def _own_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(close_switch.apply_lock, "release", lambda run: {"held": False})


def test_where_nothing_serves_there_is_nothing_to_go_back_to(machine: Applied) -> None:
    machine.runs("failed")
    assert begin(machine)["opened"] is False
    assert open_switch.read(machine.places) == {}


def test_what_serves_is_noted_before_anything_changes(machine: Applied) -> None:
    found = begin(machine)
    assert (found["opened"], found["from"], found["to"]) == (True, 1, 2)
    former, entry = entries.read_all(machine.places)
    assert former["kind"] == entries.FOUND
    assert entries.explain_not_restorable(machine.places, former) is None
    assert (entry["result"], entry["by"]["user"]) == (None, "ann")
    assert open_switch.read(machine.places)["phase"] == open_switch.WRITING


def test_the_last_entry_is_what_serves_where_nothing_else_is_in_place(machine: Applied) -> None:
    machine.entry()
    assert begin(machine)["from"] == 1
    assert [row["kind"] for row in entries.read_all(machine.places)] == ["apply", "apply"]


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
    machine.places.locate("/switch").write_text("ActiveState=activating\n")
    with pytest.raises(HostError, match="still under way"):
        begin(machine, run="r2")
    assert newest(machine)["result"] is None


def grouped(machine: Applied, *hosts: str, rank: int = 1) -> None:
    """Let the plan in place be served by these hosts together."""
    there = json.loads(machine.places.plan.read_text())
    group = {"members": [{"host": host} for host in hosts], "rank": rank, "digest": "d"}
    machine.put(layout.PLAN, json.dumps({**there, "group": group}), 0o640)


def test_hosts_that_serve_together_have_a_way_back_and_other_hosts_together_none(
    machine: Applied,
) -> None:
    grouped(machine, "a", "b")
    assert begin(machine, group=["a", "b"])["opened"] is True
    # The next run finds it open, for other hosts: it ends there, and holds no engine back.
    found = begin(machine, run="r2", group=["a", "b", "c"])
    assert (found["opened"], found["interrupted"]["entry"]) == (False, 2)
    assert open_switch.read(machine.places) == {}
    assert entries.read(machine.places, 2)["result"] == entries.INTERRUPTED


def test_a_machine_that_joins_a_group_with_an_open_switch_serves_with_it(machine: Applied) -> None:
    begin(machine)
    assert open_switch.read(machine.places)
    assert begin(machine, run="r2", group=["a", "b"])["opened"] is False
    assert open_switch.read(machine.places) == {}


def test_a_host_that_is_left_apart_goes_back_and_one_that_waits_does_not(
    machine: Applied,
) -> None:
    grouped(machine, "a", "b")
    run = machine.places.group_run
    run.mkdir(parents=True)

    def says(said: str, phase: str = "waiting") -> None:
        state = {"phase": phase, "said": said, "pid": os.getpid()}
        (run / "state.json").write_text(json.dumps(state))

    seconds = iter(range(0, 10_000, 100))
    plan = json.loads(machine.places.plan.read_text())
    apart = group_switch.Apart(machine.places, plan, lambda: next(seconds))
    for _ in range(5):
        says("waiting for a, the head")
        apart.check()
    says("a refuses this host: plan not as on a; nothing starts until they are equal: apply")
    apart.check()
    says("all hosts are here and equal", phase="starting")
    apart.check()
    says("a refuses this host: plan not as on a; nothing starts until they are equal: apply")
    apart.check()
    apart.check()
    with pytest.raises(HostError, match="plan not as on a"):
        apart.watch(lambda _: None)("loading")


def test_a_group_that_serves_and_does_not_pass_verify_stays_and_it_is_told(
    machine: Applied, monkeypatch: pytest.MonkeyPatch
) -> None:
    grouped(machine, "a", "b", rank=0)
    begin(machine, group=["a", "b"])
    machine.version("2")
    grouped(machine, "a", "b", rank=0)
    machine.runs("active", "1")

    def refuses(*_: object) -> None:
        raise HostError("it did not pass verify: tools")

    monkeypatch.setattr(engines, "wait_for_token", lambda *_: None)
    monkeypatch.setattr(engines, "verify", refuses)
    monkeypatch.setattr(group_switch.speed, "measure", lambda *_: None)
    with pytest.raises(HostError, match=r"serves, .*but it did not pass verify: tools") as raised:
        switch.run_switch(machine.places, lambda _: None)
    assert "kimi-prov rollback INVENTORY" in str(raised.value.fix)
    assert (newest(machine)["result"], machine.in_place) == (entries.DONE, "2")
    assert open_switch.read(machine.places) == {}


def test_a_rollback_to_what_other_hosts_served_is_refused(machine: Applied) -> None:
    machine.entry()
    machine.version("2")
    grouped(machine, "a", "b")
    machine.entry()
    with pytest.raises(HostError, match="entry 1 was served by this machine alone"):
        beginning.start_rollback(machine.places, RUN)
    assert open_switch.read(machine.places) == {}


def test_a_boot_puts_back_what_served(machine: Applied) -> None:
    machine.put(layout.FIREWALL, "of the former plan", 0o640)
    wants = machine.places.units / "multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "kimi-serve@0.service").symlink_to("../kimi-serve@.service")
    begin(machine)
    machine.version("2")
    more = machine.put(f"{layout.UNITS}/kimi-serve@1.service.d/10-plan.conf", "[Service]\n")
    machine.put(layout.FIREWALL, "of the new plan", 0o640)

    told = rollback.restore_at_boot(machine.places)

    assert "entry 1" in told
    assert machine.in_place == "1"
    assert not more.exists()
    entry = newest(machine)
    assert (entry["result"], entry["returned_to"]) == (entries.RETURNED, 1)
    assert open_switch.read(machine.places) == {}
    assert "daemon-reload" in machine.told
    # The firewall was up before.
    assert "try-reload-or-restart --no-block kimi-firewall.service" in machine.told
    # A boot's own jobs were made before: what is enabled is asked for, and nothing waited for.
    orders = [line for line in machine.told if line.startswith(("start", "restart", "stop"))]
    assert all(line.startswith("start --no-block ") for line in orders)
    assert "kimi-serve@0.service" in orders[0].split()
    assert rollback.restore_at_boot(machine.places) == "no switch was interrupted"
    # The run that it cut hears of it, and no other.
    assert end(machine, done=False)["told"] == [told]
    assert end(machine, done=False, run="r2")["told"] == []


def test_what_runs_beside_the_engine_goes_back_with_it(machine: Applied) -> None:
    """The watchdog's patience is of the plan: another's would restart an engine that works."""
    watchdog = f"{layout.UNITS}/kimi-watchdog.service"
    wants = machine.places.units / "multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "kimi-watchdog.service").symlink_to("../kimi-watchdog.service")
    machine.put(watchdog, "quiet 40")
    begin(machine)
    former = entries.read(machine.places, 1)
    decided = applied.hash_decided(applied.observe(machine.places))
    machine.version("2")
    machine.put(watchdog, "quiet 5")
    rollback.restore(machine.places, former)
    assert machine.places.locate(watchdog).read_text() == "quiet 40"
    assert "restart --no-block kimi-watchdog.service" in machine.told
    assert applied.hash_decided(applied.observe(machine.places)) == decided
    # What is as it was is left alone.
    machine.places.locate("/told").unlink()
    rollback.restore(machine.places, former)
    assert not [line for line in machine.told if "watchdog" in line]


def test_the_next_run_says_what_a_boot_did(machine: Applied) -> None:
    begin(machine)
    machine.version("2")
    rollback.restore_at_boot(machine.places)
    found = begin(machine, run="r2")
    assert "was cut before it could say how it ended: the machine went back to" in found["cut"][0]
    assert "restarted in the middle" in found["cut"][0]
    assert found["interrupted"] is None
    # Once.
    assert begin(machine, run="r3")["cut"] == []


def test_the_next_run_says_that_a_switch_ended_by_itself(machine: Applied) -> None:
    begin(machine)
    machine.version("2")
    opened = newest(machine)
    open_switch.end_entry(
        machine.places, entries.capture_files(machine.places, opened), entries.DONE
    )
    open_switch.close(machine.places)
    assert "what it applied was served" in end(machine, run="r2")["told"][0]
    assert end(machine, run="r3")["told"] == []


def test_a_run_that_tells_its_end_itself_is_told_of_by_no_other(machine: Applied) -> None:
    begin(machine)
    open_switch.end_entry(machine.places, newest(machine), entries.RETURNED, returned_to=1, why="x")
    open_switch.close(machine.places)
    assert end(machine, done=False)["told"] == []
    assert begin(machine, run="r2")["cut"] == []


def test_a_run_that_a_boot_cut_writes_nothing_more(machine: Applied) -> None:
    begin(machine)
    machine.version("2")
    rollback.restore_at_boot(machine.places)
    with pytest.raises(HostError, match="restarted in the middle"):
        rollback.require_no_boot(machine.places, RUN)
    assert rollback.require_no_boot(machine.places, {**RUN, "run": "r2"}) == {}
    # What it wrote before it noticed.
    machine.version("2")
    end(machine, done=False)
    assert machine.in_place == "1"


def test_an_apply_that_fails_before_the_switch_goes_back(
    machine: Applied, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "wait_for_token", lambda *_: None)
    monkeypatch.setattr(engines, "verify", lambda *_: [])
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

    monkeypatch.setattr(engines, "wait_for_token", fails)
    begin(machine)
    machine.version("2")
    with pytest.raises(HostError, match=r"too slow.*which does not serve either: the disk is gone"):
        rollback.go_back(
            machine.places, open_switch.read(machine.places), "too slow", lambda _: None
        )
    assert machine.in_place == "1"
    assert newest(machine)["result"] == entries.FAILED


RAM_UNIT = f"{layout.UNITS}/srv-kimi-ram.mount"


def test_a_ram_disk_that_holds_too_much_does_not_keep_the_former_away(
    machine: Applied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is filled anew, and then made smaller."""
    plan = json.loads(machine.places.plan.read_text())
    machine.put(layout.PLAN, json.dumps({**plan, "ram_disk": {"enabled": True}}), 0o640)
    machine.put(RAM_UNIT, "[Mount]\nOptions=size=4096,noswap\n")
    begin(machine)
    machine.put(RAM_UNIT, "[Mount]\nOptions=size=8192,noswap\n")
    machine.places.locate("/refused").write_text("reload-or-restart srv-kimi-ram.mount\n")

    rollback.restore(machine.places, entries.read(machine.places, 1))

    assert "reload-or-restart srv-kimi-ram.mount" in machine.told
    size = os.statvfs_result((4096, 4096, 9, 2, 2, 9, 9, 9, 0, 255))
    monkeypatch.setattr(engines.os.path, "ismount", lambda _: True)
    monkeypatch.setattr(engines.os, "statvfs", lambda _: size)
    monkeypatch.setattr(engines.smoke_test, "run_smoke_test", lambda *_: {"answered": True})
    engines.wait_for_token(machine.places, 9, lambda _: None)
    assert machine.told[-1] == "reload srv-kimi-ram.mount"


def test_without_room_for_a_way_back_nothing_begins(
    machine: Applied, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(beginning.os, "posix_fallocate", full)
    with pytest.raises(HostError, match=r"no space for a rollback: 8.0 MiB .*No space left"):
        begin(machine)
    assert not open_switch.find_reserve_file(machine.places).exists()
    assert open_switch.read(machine.places) == {}


def test_the_failures_of_the_new_engine_do_not_count_for_the_former(
    machine: Applied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the new one fails at once, and waits to be started again."""
    monkeypatch.setattr(engines, "wait_for_token", lambda *_: None)
    monkeypatch.setattr(engines, "verify", lambda *_: [])
    begin(machine)
    machine.version("2")
    machine.runs("activating", sub="auto-restart")
    with pytest.raises(HostError, match="serves again"):
        rollback.go_back(
            machine.places, open_switch.read(machine.places), "it failed", lambda _: None
        )
    at = machine.told.index("stop kimi-serve@0.service")
    assert machine.told[at + 1] == "reset-failed kimi-serve@0.service"


def test_the_reason_says_that_the_disk_is_full(
    machine: Applied, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "wait_for_token", lambda *_: None)
    monkeypatch.setattr(engines, "verify", lambda *_: [])
    begin(machine)
    free = os.statvfs_result((4096, 4096, 9, 2, 2, 9, 9, 9, 0, 255))
    monkeypatch.setattr(rollback.os, "statvfs", lambda _: free)
    with pytest.raises(HostError, match=r"it failed \(the disk is full: 8.0 KiB free below"):
        rollback.go_back(
            machine.places, open_switch.read(machine.places), "it failed", lambda _: None
        )


def test_a_way_back_that_fails_is_left_open_for_the_next(machine: Applied) -> None:
    machine.entry()
    begin(machine)
    machine.version("2")
    entries.find_copy(machine.places, entries.read(machine.places, 1), DROP_IN).unlink()
    with pytest.raises(rollback.StuckError, match=r"too slow. The rollback failed: .*has lost"):
        rollback.go_back(
            machine.places, open_switch.read(machine.places), "too slow", lambda _: None
        )
    assert open_switch.read(machine.places)["phase"] == open_switch.RETURNING


@pytest.mark.parametrize(
    "error", [rollback.StuckError("no room"), OSError(28, "No space left on device")]
)
def test_a_way_back_that_is_stuck_is_tried_again_by_the_unit(
    machine: Applied, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    def fails(*_: object) -> str:
        raise error

    monkeypatch.setattr(switch, "run_switch", fails)
    monkeypatch.setattr(switch, "Paths", lambda: machine.places)
    monkeypatch.setattr(switch.layout, "SWITCH_PROGRESS", str(tmp_path / "progress.json"))
    assert switch.main(["run"]) == unit.AGAIN
    told = json.loads((tmp_path / "progress.json").read_text())
    assert (told["state"], bool(told["message"])) == ("failed", True)


def test_a_switch_that_was_cut_in_the_middle_goes_back(
    machine: Applied, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "wait_for_token", lambda *_: None)
    monkeypatch.setattr(engines, "verify", lambda *_: [])
    begin(machine)
    machine.version("2")
    state = open_switch.read(machine.places)
    open_switch.write(machine.places, {**state, "phase": open_switch.SWITCHING})
    with pytest.raises(HostError, match="the switch was cut"):
        switch.run_switch(machine.places, lambda _: None)
    assert machine.in_place == "1"


def test_a_driver_that_update_brought_is_noted_with_its_files_and_nothing_else(
    machine: Applied,
) -> None:
    def noted() -> dict[str, str]:
        return {row["path"]: row["sha256"] for row in applied.read(machine.places)["files"]}

    machine.put(layout.NVIDIA_PIN, "Pin: version 1\n")
    end(machine)
    before = noted()
    pin = machine.put(layout.NVIDIA_PIN, "Pin: version 2\n")
    machine.put(layout.UNATTENDED_UPGRADES, "hold\n")
    # Somebody else's change stays a drift.
    machine.put(DROP_IN, "[Service]\n")
    applied.amend_driver(machine.places)
    after = noted()
    assert after.pop(layout.UNATTENDED_UPGRADES)
    assert after.pop(layout.NVIDIA_PIN) == hashlib.sha256(pin.read_bytes()).hexdigest()
    assert before.pop(layout.NVIDIA_PIN)
    assert after == before


def test_an_apply_is_noted_once(machine: Applied) -> None:
    assert end(machine)["entry"] == 1
    there = applied.read(machine.places)
    assert (there["entry"], there["by"]["user"]) == (1, "ann")
    assert end(machine)["entry"] == 1
    assert applied.read(machine.places) == there
    machine.version("2")
    assert end(machine)["entry"] == 2
    assert len(entries.read_all(machine.places)) == 2


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
    found = beginning.start_rollback(machine.places, {**RUN, "to": None})
    assert found["restores"] == 2
    state = open_switch.read(machine.places)
    assert (state["kind"], state["from"], state["restores"]) == (entries.ROLLBACK, 3, 2)
    assert state["start_s"] == 60


def test_the_same_rollback_once_more_follows_the_one_that_is_at_work(machine: Applied) -> None:
    """Its command was killed: the unit goes on, and a second rollback would go forward again."""
    for version in ("1", "2", "3"):
        machine.version(version)
        machine.entry()
    first = beginning.start_rollback(machine.places, {**RUN, "to": None})
    machine.places.locate("/switch").write_text("ActiveState=activating\n")
    before = open_switch.read(machine.places)
    for number in (None, 2):
        again = beginning.start_rollback(machine.places, {**RUN, "run": "r2", "to": number})
        assert (again["opened"], again["restores"], again["to"]) == (True, 2, first["to"])
        assert unit.start_unit(machine.places) == {"started": True}
    assert open_switch.read(machine.places) == before
    with pytest.raises(HostError, match="still under way"):
        beginning.start_rollback(machine.places, {**RUN, "run": "r2", "to": 1})
    assert len(entries.read_all(machine.places)) == first["to"]


@pytest.mark.parametrize(
    ("number", "why"), [(9, "no entry 9"), (2, "is what is in place"), (1, "cannot be restored")]
)
def test_a_rollback_says_why_it_does_not_go_there(machine: Applied, number: int, why: str) -> None:
    machine.entry()
    machine.version("2", model="b")
    machine.entry()
    machine.places.locate(f"{layout.MODELS}/a/r/{layout.MODEL_VERIFIED}").unlink()
    with pytest.raises(HostError, match=why):
        beginning.start_rollback(machine.places, {**RUN, "to": number})
    assert open_switch.read(machine.places) == {}


def test_what_is_in_place_is_told_though_an_earlier_entry_of_it_has_no_files(
    machine: Applied,
) -> None:
    for version in ("1", "2", "1"):
        machine.version(version)
        machine.entry()
    entries.prune(machine.places, 2)
    assert entries.explain_not_restorable(machine.places, entries.read(machine.places, 1))
    with pytest.raises(HostError, match="is what is in place"):
        beginning.start_rollback(machine.places, {**RUN, "to": 1})


def test_without_room_for_both_the_former_is_removed_and_there_is_no_way_back(
    machine: Applied,
) -> None:
    gone = f"{layout.MODELS}/a/r"
    found = begin(machine, frees=[gone])
    assert (found["opened"], found["freed"]) == (False, [gone])
    # The folder of the model with it.
    assert not machine.places.locate(gone).parent.exists()
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
    number = open_switch.read(machine.places)["from"]
    for version in ("2", "3"):
        machine.version(version)
        told = end(machine, run="r2", keep=1)["told"]
        assert "without --tags" in told[0]
    assert entries.has_files(machine.places, entries.read(machine.places, number))


def test_a_rollback_drops_no_version(machine: Applied) -> None:
    end(machine)
    machine.version("2")
    assert end(machine, run="r2", keep=None)["dropped"] == []
    machine.version("3")
    assert end(machine, run="r3", keep=1)["dropped"] == [1, 2]


def test_a_boot_leaves_what_is_there_where_the_former_is_not_kept(machine: Applied) -> None:
    begin(machine)
    machine.version("2")
    state = open_switch.read(machine.places)
    shutil.rmtree(entries.find_folder(machine.places, state["from"]) / "files")
    assert "no files any more" in rollback.restore_at_boot(machine.places)
    assert machine.in_place == "2"
    assert open_switch.read(machine.places) == {}


def test_the_lock_is_released_where_nothing_can_be_noted(
    machine: Applied, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = []
    monkeypatch.setattr(close_switch.apply_lock, "release", released.append)
    machine.places.applied.mkdir(parents=True)
    with pytest.raises(HostError, match="applied"):
        end(machine)
    assert len(released) == 1
