"""Code of an engine: what systemd-run is told, what comes back, and that it ends in any case.

That it is really confined is seen on a machine with systemd: tests/lab/test_engine_code.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from systemd_stand_in import StandIn, systemd_stand_in
from waiting import HANGS_S, until

from kimi_prov.contract import protection
from kimi_prov.on_host.system import process, sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ODD = 'a "b" $HOME `id` \\n \\\\ größe\nsecond line'
WAITER = """
import sys
from kimi_prov.contract import paths
from kimi_prov.on_host.system import sandbox
paths.SANDBOX_ENVS = sys.argv[1]
sandbox.run("/bin/sleep", "600", env={"A": "b"}, timeout=600)
"""


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return systemd_stand_in(tmp_path / "systemd", monkeypatch)


def envs(systemd: StandIn) -> Path:
    """Where each run has its environment."""
    return systemd.folder / "run" / "sandbox"


@pytest.fixture
def waiter(systemd: StandIn) -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for one in the sandbox."""
    argv = [sys.executable, "-c", WAITER, str(envs(systemd))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as running:
        try:
            assert until(lambda: bool(systemd.pid))
            yield running
        finally:
            running.kill()


def test_output_exit_status_input_and_environment_pass(systemd: StandIn) -> None:
    script = 'cat; printf %s "$ODD"; echo "$HOME" >&2; exit 7'
    done = sandbox.run("/bin/sh", "-c", script, env={"ODD": ODD}, stdin="given ", timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (7, f"given {ODD}", "/tmp\n")
    assert systemd.mode == "600"
    assert "ODD" not in "".join(systemd.options)
    assert not list(envs(systemd).iterdir())


@pytest.mark.parametrize("gpus", [False, True])
def test_it_runs_as_the_service_s_user_with_the_server_s_protection(
    systemd: StandIn, *, gpus: bool
) -> None:
    sandbox.run("/bin/true", env={}, timeout=5, gpus=gpus)
    told = systemd.options
    assert "--unit=kimi-sandbox.service" in told
    assert {"--wait", "--pipe", "--collect"} <= set(told)
    assert "--property=User=kimi" in told
    assert set(protection.build_run_options("engine", gpus=gpus, write=["/srv/kimi/cache"])) <= set(
        told
    )
    assert ("--property=DevicePolicy=closed" in told) == gpus
    # systemd itself ends what its starter could not.
    assert any(word.startswith("--property=RuntimeMaxSec=") for word in told)


def test_what_takes_too_long_is_ended(systemd: StandIn) -> None:
    done = sandbox.run("/bin/sleep", "600", env={}, timeout=0.5)
    assert isinstance(done, process.Unfinished)
    assert done.returncode == process.TIMED_OUT
    assert not systemd.runs


def test_a_leftover_is_ended_first(systemd: StandIn, waiter: subprocess.Popen[bytes]) -> None:
    left = systemd.pid
    assert sandbox.run("/bin/echo", "second", env={}, timeout=60).stdout == "second\n"
    assert systemd.pid != left
    assert waiter.wait(HANGS_S) == 0, "its own was ended"


def test_who_was_ended_leaves_the_environment_of_the_next(
    systemd: StandIn, waiter: subprocess.Popen[bytes]
) -> None:
    (before,) = envs(systemd).iterdir()
    with sandbox.open_process(["/bin/sleep", "600"], env={"A": "c"}, limit_s=600, gpus=False):
        assert waiter.wait(HANGS_S) == 0
        (file,) = envs(systemd).iterdir()
        assert file != before
        assert 'A="c"' in file.read_text()
    assert not list(envs(systemd).iterdir())


def test_the_environment_that_a_killed_process_left_goes_with_the_next(
    systemd: StandIn, waiter: subprocess.Popen[bytes]
) -> None:
    waiter.kill()
    waiter.wait(HANGS_S)
    (ended,) = envs(systemd).iterdir()
    half_written = envs(systemd) / f".{ended.name}.half"
    half_written.touch()
    name = f"{os.getppid()}-starts.env"
    of_another = {envs(systemd) / name, envs(systemd) / f".{name}.half"}
    for file in of_another:
        file.touch()
    sandbox.run("/bin/true", env={}, timeout=60)
    assert set(envs(systemd).iterdir()) == of_another


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_it_ends_with_the_one_who_waits(
    systemd: StandIn, waiter: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    waiter.send_signal(number)
    assert waiter.wait(HANGS_S) != 0
    assert not systemd.runs
    assert not list(envs(systemd).iterdir())


def test_it_ends_when_the_connection_is_cut(
    systemd: StandIn, waiter: subprocess.Popen[bytes]
) -> None:
    assert waiter.stdout is not None
    waiter.stdout.close()
    assert until(lambda: not systemd.runs)
    waiter.wait(HANGS_S)
