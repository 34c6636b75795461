"""A program of a model: what its unit is told, and how its output and its end are read.

That the unit confines it is seen on a machine with systemd: tests/lab/test_code_unit.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from systemd_stand_in import StandIn, systemd_stand_in

from kimi_prov.contract import protection
from kimi_prov.on_host.acceptance import code_unit

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = systemd_stand_in(tmp_path / "systemd", monkeypatch)
    monkeypatch.setattr(code_unit, "_SYSTEMD", str(tmp_path / "systemd"))
    monkeypatch.setattr(code_unit, "_GRACE_S", 0.0)
    return found


def test_the_unit_is_told_every_limit_and_the_program_is_in_no_argument(systemd: StandIn) -> None:
    assert code_unit.run("print('canary', 6 * 7)") == {"out": "canary 42\n", "ended": ""}
    told = systemd.options
    assert set(protection.build_code_options(code_unit.LIMIT_S)) <= set(told)
    assert "--unit=kimi-code.service" in told
    assert not [word for word in told if "canary" in word]
    wanted = {
        *("DynamicUser=yes", "PrivateNetwork=yes", "NoNewPrivileges=yes", "ProtectSystem=strict"),
        *("MemoryMax=512M", "TasksMax=32", "CPUQuota=100%", "RuntimeMaxSec=20"),
        *("InaccessiblePaths=-/etc/kimi", "InaccessiblePaths=-/srv/kimi"),
        *("RestrictAddressFamilies=AF_UNIX", "ProtectHome=yes", "PrivateDevices=yes"),
    }
    assert {f"--property={setting}" for setting in wanted} <= set(told)


def test_the_program_s_file_can_be_read_alone(systemd: StandIn) -> None:
    source = """
import os
try:
    os.posix_fallocate(0, 0, 1 << 20)
except OSError as error:
    print(error.strerror)
"""
    assert code_unit.run(source) == {"out": "Bad file descriptor\n", "ended": ""}


def test_the_unit_has_no_way_to_sockets_past_the_filter(systemd: StandIn) -> None:
    code_unit.run("print(1)")
    (refused,) = (word for word in systemd.options if "SystemCallFilter=~" in word)
    assert {"@aio", "@network-io"} <= set(refused.partition("~")[2].split())
    hidden = {f"/run/systemd/{name}" for name in ("private", "notify", "journal")}
    assert {f"--property=InaccessiblePaths=-{path}" for path in hidden} <= set(systemd.options)


def test_what_sleeps_is_ended_and_what_it_wrote_is_kept(systemd: StandIn) -> None:
    source = "import time\nprint('before', flush=True)\ntime.sleep(600)"
    # Long enough for the interpreter to start on a loaded machine.
    found = code_unit.run(source, limit_s=4.0)
    assert found == {"out": "before\n", "ended": "ended because it ran longer than 4 s"}
    assert not systemd.runs


def test_what_writes_without_end_is_cut_and_ended(systemd: StandIn) -> None:
    found = code_unit.run("while True:\n    print('x' * 999)")
    assert len(found["out"]) == code_unit.OUTPUT_BYTES
    assert "wrote more than" in found["ended"]
    assert not systemd.runs


def test_output_steers_nothing_and_a_failure_is_told(systemd: StandIn) -> None:
    found = code_unit.run("print('\\x1b[2J')\nraise SystemExit(3)")
    assert found == {"out": "\\x1b[2J\n", "ended": "exit status 3"}


def test_without_systemd_nothing_is_run(
    systemd: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_unit, "_SYSTEMD", str(tmp_path / "nowhere"))
    assert code_unit.run("print(1)") == {"reason": "systemd does not run here"}
    assert systemd.options == []
