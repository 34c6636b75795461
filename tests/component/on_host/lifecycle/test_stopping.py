"""Stop, start and restart as the machine does them, with a systemctl that says what it is told."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import stop_log, stop_state
from kimi_prov.on_host.lifecycle import run, starts, status

if TYPE_CHECKING:
    from pathlib import Path

UNIT = "kimi-serve@0.service"
ASKED = {"by": {"user": "ann", "control_host": "desk"}, "drain_s": 5, "part": "serving"}


class Machine:
    """A machine of files; `active` says whether its engine runs."""

    def __init__(self, root: Path) -> None:
        self.places = Paths(root)
        self.root = root
        self.plan: dict[str, Any] = {
            "engine": {"env_name": "vllm-1"},
            "model": {"name": "m", "serve_dir": "/srv/kimi/models/m"},
            "instances": [{"index": 0}],
            "rest": {"memory": "free", "idle": None, "wake": "off"},
            "ram_disk": {"enabled": True, "units": ["srv-kimi-ram.mount", "kimi-stage.service"]},
            "throughput": {"load_s": {"expected": 240.0}},
            "timeouts": {"start_s": 600},
        }
        self.apply()
        self.runs(active=True)

    def apply(self) -> None:
        self.places.plan.parent.mkdir(parents=True, exist_ok=True)
        self.places.plan.write_text(json.dumps(self.plan))

    def runs(self, *, active: bool, run_id: str = "a1", begun_s: float = 10, took_s: float = 5):
        state = "active" if active else "inactive"
        ended = begun_s + took_s
        (self.root / "said").write_text(
            f"LoadState=loaded\nActiveState={state}\nInvocationID={run_id if active else ''}\n"
            f"InactiveExitTimestampMonotonic={begun_s * 1e6:.0f}\n"
            f"ActiveEnterTimestampMonotonic={ended * 1e6:.0f}\n"
        )

    @property
    def told(self) -> list[str]:
        log = self.root / "told"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    for name in ("systemctl", "systemd-run"):
        stub = tmp_path / "bin" / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(
            f'#!/bin/sh\n[ "$1" = show ] || {{ echo {name} "$@" >> {tmp_path}/told; exit 0; }}\n'
            "seen=; for last; do case $last in *.service)\n"
            f'[ -z "$seen" ] || echo; seen=1; echo "Id=$last"; cat {tmp_path}/said;;\n'
            "esac; done\n"
        )
        stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return Machine(tmp_path)


def test_the_mark_stands_before_anything_is_stopped(machine: Machine) -> None:
    told = run.stop(machine.places, ASKED)
    assert (told["was"], told["started"]) == ("serving", True)
    found = stop_state.read(machine.places)
    assert (found["state"], found["by"]) == ("stopped", ASKED["by"])
    assert not [line for line in machine.told if line.startswith(f"systemctl stop {UNIT}")]
    assert "by ann@desk" in stop_state.describe(found)
    assert "ann" not in stop_state.describe_for_clients(found)


def test_a_stop_frees_the_ram_disk_or_keeps_it_as_the_inventory_says(machine: Machine) -> None:
    run.stop_engines(machine.places, machine.plan, 0, lambda _: None)
    frees = [line for line in machine.told if "stage" in line or "ram" in line]
    assert frees == [
        "systemctl disable --now --quiet kimi-stage.service",
        "systemctl stop --quiet srv-kimi-ram.mount",
    ]
    assert status.list_resting_units(machine.places, machine.plan) == ()
    run.stop(machine.places, ASKED)
    assert status.list_resting_units(machine.places, machine.plan) == (
        UNIT, "srv-kimi-ram.mount", "kimi-stage.service",
    )  # fmt: skip
    kept = {**machine.plan, "rest": {"memory": "keep"}}
    before = len(machine.told)
    run.stop_engines(machine.places, kept, 0, lambda _: None)
    assert not [line for line in machine.told[before:] if "stage" in line or "ram" in line]
    assert status.list_resting_units(machine.places, kept) == (UNIT,)


def test_a_second_stop_keeps_since_when_it_is_stopped(machine: Machine) -> None:
    run.stop(machine.places, ASKED)
    since = {**stop_state.read(machine.places), "since": "2026-01-01T00:00:00Z"}
    machine.places.stopped.write_text(json.dumps(since))
    assert run.stop(machine.places, ASKED)["was"] == "stopped"
    assert stop_state.read(machine.places)["since"] == "2026-01-01T00:00:00Z"


def test_a_start_takes_the_mark_away_before_the_engine_starts(machine: Machine) -> None:
    run.stop(machine.places, ASKED)
    machine.runs(active=False)
    told = run.start(machine.places, {"hosts": ["a"]})
    assert told["was"] == "stopped"
    assert not machine.places.stopped.exists()
    assert "systemctl enable --quiet kimi-stage.service" in machine.told
    assert f"systemctl start --no-block kimi-stage.service {UNIT}" in machine.told
    assert told["expected"]["seconds"] == 240.0
    assert "estimate" in told["expected"]["basis"]


def test_what_serves_is_not_started_again(machine: Machine) -> None:
    assert run.start(machine.places, {})["was"] == "serving"
    assert machine.told == []


def test_the_next_start_is_told_by_what_the_last_ones_took(machine: Machine) -> None:
    for number, took in enumerate((300.0, 90.0, 100.0, 95.0)):
        machine.runs(active=True, run_id=f"b{number}", took_s=took)
        assert starts.record_start(machine.places, machine.plan)["seconds"] == took
        # Looked at again, it is the same start.
        starts.record_start(machine.places, machine.plan)
    assert len(starts.read_starts(machine.places)) == 4
    found = starts.estimate_start(machine.places, machine.plan, starts.RAM_DISK)
    assert found["seconds"] == 95.0
    assert found["basis"] == "the last 3 starts on this machine took 1:30 to 1:40"
    other = {**machine.plan, "model": {"name": "another"}}
    assert starts.estimate_start(machine.places, other, starts.DISK)["seconds"] == 240.0


def test_starts_from_the_same_place_count_before_others(machine: Machine) -> None:
    machine.runs(active=True, run_id="c1", took_s=300)
    starts.record_start(machine.places, machine.plan)
    asked = {"at_monotonic_s": 15.0, "held": starts.RAM_DISK, "by": "start"}
    machine.places.begun.parent.mkdir(parents=True, exist_ok=True)
    machine.places.begun.write_text(json.dumps(asked))
    machine.runs(active=True, run_id="c2", begun_s=20, took_s=40)
    # From when it was asked for, filling the RAM disk included.
    assert starts.record_start(machine.places, machine.plan)["seconds"] == 45.0
    assert starts.estimate_start(machine.places, machine.plan, starts.RAM_DISK)["seconds"] == 45.0


def test_hosts_of_a_group_stop_and_start_together(machine: Machine) -> None:
    members = [{"host": "a", "address": "10.0.0.1"}, {"host": "b", "address": "10.0.0.2"}]
    machine.plan["group"] = {"name": "g", "rank": 1, "members": members}
    machine.apply()
    both = {**ASKED, "hosts": ["a", "b"]}
    with pytest.raises(HostError, match="b serves together with this host and is not in this run"):
        run.stop(machine.places, {**both, "hosts": ["a"]})
    # The head's answers end first.
    assert run.stop(machine.places, both)["left_out"]
    assert not machine.places.stopped.exists()
    assert run.stop(machine.places, {**both, "part": "rank"})["started"]
    assert run.restart(machine.places, both)["together"]


@pytest.mark.parametrize(("phase", "was"), [("serving", "serving"), ("waiting", "not serving")])
def test_a_rank_that_waits_for_its_head_serves_not_yet(
    machine: Machine, phase: str, was: str
) -> None:
    members = [{"host": "a", "address": "10.0.0.1"}, {"host": "b", "address": "10.0.0.2"}]
    machine.plan["group"] = {"name": "g", "rank": 1, "members": members}
    machine.apply()
    machine.places.group_run.mkdir(parents=True)
    seen = {"phase": phase, "said": "", "pid": os.getpid()}
    (machine.places.group_run / "state.json").write_text(json.dumps(seen))
    assert run.start(machine.places, {"hosts": ["a", "b"]})["was"] == was


@pytest.mark.parametrize("together", [False, True])
def test_a_unit_that_starts_again_has_failed_but_that_of_a_group(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, *, together: bool
) -> None:
    monkeypatch.setattr(run, "_POLL_INTERVAL_S", 0)
    said = machine.root / "said"
    (machine.root / "bin" / "journalctl").write_text("#!/bin/sh\necho loads\n")
    (machine.root / "bin" / "journalctl").chmod(0o755)
    active = said.read_text()
    looks = [active.replace("=active", "=activating") + f"NRestarts={n}\n" for n in (0, 1)]
    said.write_text(looks[0])
    looks.append(active)

    def next_look() -> None:
        if len(looks) > 1:
            said.write_text(looks.pop(1))

    until = time.monotonic() + 60
    if together:
        run.wait_for_units([UNIT], until, lambda _: None, next_look, together=True)
    else:
        with pytest.raises(HostError, match=f"{UNIT} failed: loads"):
            run.wait_for_units([UNIT], until, lambda _: None, next_look)


def test_a_stopped_machine_is_not_restarted(machine: Machine) -> None:
    run.stop(machine.places, ASKED)
    with pytest.raises(HostError, match="it is stopped on purpose since"):
        run.restart(machine.places, ASKED)


def test_a_start_that_fails_is_told_by_its_own_lines(machine: Machine) -> None:
    journal = machine.root / "bin" / "journalctl"
    journal.write_text(
        "#!/bin/sh\n"
        "case \"$*\" in *--since=@*) ;; *) exec echo 'ValueError: of a start before';; esac\n"
        "echo 'OSError: no such luck'\necho 'ended with 7'\n"
    )
    journal.chmod(0o755)
    said = machine.root / "said"
    said.write_text(said.read_text().replace("=active", "=failed"))
    with pytest.raises(HostError, match=f"{UNIT} failed: OSError: no such luck"):
        run.wait_for_units([UNIT], 0, lambda _: None)


def test_what_an_earlier_version_applied_is_applied_again_first(machine: Machine) -> None:
    del machine.plan["rest"]
    machine.apply()
    with pytest.raises(HostError, match="an earlier version") as refused:
        run.stop(machine.places, ASKED)
    assert "kimi-prov apply" in str(refused.value.fix)
    assert not machine.places.stopped.exists()


@pytest.mark.parametrize(
    ("marked", "unit", "down", "wakes", "state"),
    [
        ({}, "active", False, False, "serving"),
        ({}, "activating", True, False, "starting"),
        ({}, "failed", True, False, "failed"),
        ({"state": "stopped"}, "deactivating", False, False, "stopping"),
        ({"state": "stopped"}, "inactive", False, False, "stopped"),
        ({"state": "asleep"}, "inactive", False, False, "asleep"),
        # Its engine sleeps, and was not ended; before that it falls asleep.
        ({"state": "asleep", "held_mib": {}}, "active", False, False, "asleep"),
        ({"state": "asleep"}, "active", False, False, "stopping"),
        # While it falls asleep an engine may start again by itself.
        ({"state": "asleep"}, "activating", False, False, "stopping"),
        # Somebody wakes it: memory is filled, the engine loads, the proxy is waited for.
        ({"state": "asleep"}, "inactive", False, True, "starting"),
        ({"state": "asleep"}, "activating", False, True, "starting"),
        ({"state": "asleep"}, "active", False, True, "starting"),
    ],
)
def test_the_state_of_a_host(
    marked: dict, unit: str, *, down: bool, wakes: bool, state: str
) -> None:
    states = {UNIT: {"state": unit}}
    assert status.decide_state(marked, states, down=down, wakes=wakes) == state


def test_what_all_rests_saved_is_told_with_the_one_of_now(machine: Machine) -> None:
    power = {**machine.plan, "rest": {"power": {"idle_kw": 2.0, "usd_per_kwh": 0.15}}}
    for hours in (3, 7):
        run.stop(machine.places, ASKED)
        found = stop_state.read(machine.places)
        past = {**found, "since_boot_s": found["since_boot_s"] - hours * 3600}
        machine.places.stopped.write_text(json.dumps(past))
        if hours == 3:
            stop_state.clear(machine.places)
    told = stop_log.describe_rests(machine.places, power, stop_state.read(machine.places))
    assert (told["times"], round(told["hours"])) == (2, 10)
    assert (round(told["kwh_at_most"]), round(told["usd_at_most"])) == (20, 3)
    unknown = stop_log.describe_rests(machine.places, machine.plan, {})
    assert (unknown["times"], unknown["kwh_at_most"], unknown["usd_at_most"]) == (1, None, None)


def test_the_hours_asleep_before_a_stop_are_kept(machine: Machine) -> None:
    asleep = stop_state.build_state(stop_state.ASLEEP, "nobody asked")
    stop_state.write(machine.places, {**asleep, "since_boot_s": asleep["since_boot_s"] - 5 * 3600})
    assert run.stop(machine.places, ASKED)["was"] == "asleep"
    told = stop_log.describe_rests(machine.places, machine.plan, stop_state.read(machine.places))
    assert (told["times"], round(told["hours"])) == (2, 5)


@pytest.mark.parametrize("days", [-40, 40])
def test_a_clock_that_was_set_adds_and_takes_nothing(machine: Machine, days: int) -> None:
    run.stop(machine.places, ASKED)
    found = stop_state.read(machine.places)
    past = {
        "since_s": found["since_s"] - days * 86_400,
        "since_boot_s": found["since_boot_s"] - 3600,
    }
    machine.places.stopped.write_text(json.dumps({**found, **past}))
    told = stop_log.describe_rests(machine.places, machine.plan, stop_state.read(machine.places))
    assert round(told["hours"]) == 1
    stop_state.clear(machine.places)
    assert round(stop_log.read(machine.places)["seconds"] / 3600) == 1


@pytest.mark.parametrize(("days", "hours"), [(-40, 0), (2, 48)])
def test_over_a_boot_it_is_the_clock_of_the_day(machine: Machine, days: int, hours: int) -> None:
    run.stop(machine.places, ASKED)
    found = {**stop_state.read(machine.places), "boot": "another", "since_boot_s": 0}
    past = {**found, "since_s": found["since_s"] - days * 86_400}
    machine.places.stopped.write_text(json.dumps(past))
    stop_state.clear(machine.places)
    assert round(stop_log.read(machine.places)["seconds"] / 3600) == hours


def test_the_mark_is_where_others_look_for_it() -> None:
    assert layout.STOPPED == "/var/lib/kimi/state/stopped.json"
