"""A machine that restarts itself for its driver: what it records, what the next plan makes of it.

nvidia-smi and the tools of packages are stand-ins; the records and the plans are real.
"""

from __future__ import annotations

import io
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from plan_inputs import HUGE, gpu_facts, plan

from kimi_prov.contract import paths
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.__main__ import main
from kimi_prov.on_host.driver import steps
from kimi_prov.on_host.probe import installed
from kimi_prov.on_host.system import machine
from kimi_prov.planner.plan import find_refusals

if TYPE_CHECKING:
    from pathlib import Path

OLD, NEW = "570.133.20", "580.159.04"
SILENT = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


class Computer:
    """What a driver's steps see and change; `boot` is another one after each restart."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, capsys: Any) -> None:
        self.root, self.capsys = root, capsys
        self.state = root / "var/lib/kimi/state/driver.json"
        self.patch = patch
        self.on_disk, self.loaded = OLD, OLD
        patch.setattr(paths, "DRIVER_STATE", str(self.state))
        patch.setattr(steps, "WANTED", str(root / "wanted.json"))
        patch.setattr(steps, "PREVIOUS", str(root / "previous"))
        patch.setattr(machine, "_PATH", f"{root}/bin:/usr/bin:/bin")
        patch.setenv("PATH", f"{root}/bin:{os.environ['PATH']}")
        (root / "bin").mkdir()
        for name in ("apt-get", "apt-mark", "dpkg", "systemd-run"):
            self.program(name, f'echo "{name} $*" >>{root}/calls')
        self.program("nvidia-smi", f'echo "{SILENT}"; exit 9')
        self.packages()
        self.boots = 0
        self.boot()

    def program(self, name: str, script: str) -> None:
        file = self.root / "bin" / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def packages(self) -> None:
        self.program("dpkg-query", f"echo 'installed libcuda1 {self.on_disk}-1'")

    def boot(self) -> None:
        self.boots += 1
        own = self.root / "proc"
        (own / "1").mkdir(parents=True, exist_ok=True)
        (own / "sys/kernel/random").mkdir(parents=True, exist_ok=True)
        (own / "sys/kernel/random/boot_id").write_text("the-host's-own\n")
        (own / "1/stat").write_text(f"1 (systemd) {' '.join(['0'] * 19)} {self.boots}00\n")
        self.patch.setattr(
            steps.boot, "read_boot_id", lambda _: _identity(machine.Machine(str(self.root)))
        )

    def step(self, verb: str, **more: object) -> dict[str, Any]:
        question = {"check": False, "version": NEW, "gpus": 8, "fabric_manager": False, **more}
        self.patch.setattr("sys.stdin", io.StringIO(json.dumps(question)))
        main(["driver", verb])
        return dict(json.loads(self.capsys.readouterr().out))

    def plan(self) -> dict[str, Any]:
        facts = gpu_facts(driver=self.loaded or "")
        facts["nvidia"] |= {
            "driver_loaded": self.loaded,
            "driver_installed": self.on_disk,
            "nvswitch_devices": 0,
            "packages": {"libcuda1": f"{self.on_disk}-1"},
        }
        place = machine.Machine(str(self.root))
        self.patch.setattr(paths, "DRIVER_STATE", "/var/lib/kimi/state/driver.json")
        facts["kimi"]["driver"] = installed._read_driver_record(place)
        self.patch.setattr(paths, "DRIVER_STATE", str(self.state))
        return plan(facts, **HUGE)

    def upgraded(self, *, kept: bool) -> None:
        """As `prepare` and `install` leave it: 580 on the disk, 570 running."""
        previous = {"packages": {"libcuda1": f"{OLD}-1"}, "version": OLD, "whole": True}
        self.state.parent.mkdir(parents=True)
        self.state.write_text(
            json.dumps({"version": NEW, "held": [], **({"previous": previous} if kept else {})})
        )
        (self.root / "wanted.json").write_text(json.dumps({"version": NEW}))
        self.on_disk = NEW
        self.packages()


_identity = steps.boot.read_boot_id


@pytest.fixture
def computer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Computer:
    return Computer(tmp_path, monkeypatch, capsys)


def test_one_that_does_not_come_up_is_gone_back_from_once(computer: Computer) -> None:
    assert computer.plan()["driver"]["action"] == "install"
    computer.upgraded(kept=True)
    computer.step("restarts")
    # Until the restart is over it is the restart that is due.
    assert computer.plan()["driver"]["action"] == "restart"
    computer.boot()
    computer.loaded = None
    assert computer.plan()["driver"]["action"] == "confirm"
    error = HostError.from_answer(computer.step("answer", timeout_s=0))
    assert error is not None
    assert SILENT in error.message
    # A run that was cut here confirms again.
    assert computer.plan()["driver"]["action"] == "confirm"
    told = computer.step("rollback", why=error.message)
    assert told["version"] == OLD
    computer.on_disk = OLD
    computer.packages()
    computer.boot()
    for loaded in (None, OLD):
        computer.loaded = loaded
        document = computer.plan()
        (row,) = [row for row in find_refusals(document) if row["id"] == "driver.failed_here"]
        assert row["observed"].startswith(f"{NEW}: {SILENT}")


def test_without_one_before_it_stops_and_restarts_no_more(computer: Computer) -> None:
    computer.upgraded(kept=False)
    computer.step("restarts")
    computer.boot()
    computer.loaded = None
    assert computer.plan()["driver"]["action"] == "confirm"
    error = HostError.from_answer(computer.step("rollback", why=SILENT))
    assert error is not None
    assert "there is no rollback" in error.message
    assert "no restart is tried again" in error.message
    computer.boot()
    document = computer.plan()
    assert (document["driver"]["action"], document["driver"]["restart"]) == ("none", False)
    assert "driver.failed_here" in {row["id"] for row in find_refusals(document)}


def test_one_that_answers_is_confirmed_once(computer: Computer) -> None:
    computer.upgraded(kept=True)
    computer.step("restarts")
    computer.boot()
    computer.loaded = NEW
    assert computer.plan()["driver"]["action"] == "confirm"
    gpus = "".join(f"<gpu id='{n}'><product_name>H200</product_name></gpu>" for n in range(8))
    log = f"<nvidia_smi_log><driver_version>{NEW}</driver_version>{gpus}</nvidia_smi_log>"
    computer.program("nvidia-smi", f'echo "{log}"')
    assert computer.step("answer", timeout_s=0) == {"gpus": 8, "version": NEW}
    assert computer.plan()["driver"]["action"] == "none"
    assert json.loads(computer.state.read_text())["previous"]["version"] == OLD
