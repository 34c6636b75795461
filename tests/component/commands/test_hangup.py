"""A terminal that goes away: SIGHUP ends a command as Ctrl-C does, unless nohup asked otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import HANGS_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator

SHEET = Path(__file__).resolve().parents[3] / "inventories" / "specs" / "quote-8x-h200.yml"


def started(home: Path, *, ignoring: bool) -> subprocess.Popen[str]:
    """A check that waits for its sheet, past the point where it has set its signals."""
    # As nohup does; what runs the tests may itself run under it.
    option = "--ignore-signal=HUP" if ignoring else "--default-signal=HUP"
    process = subprocess.Popen(
        ["env", option, sys.executable, "-m", "kimi_prov", "check", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
    )
    assert until(lambda: caught(process.pid) & 1 << (signal.SIGTERM - 1))
    return process


def caught(pid: int) -> int:
    """The mask of signals that a process handles itself."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    found: list[subprocess.Popen[str]] = []
    yield found
    for process in found:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_that_ends_it_is_told(
    tmp_path: Path, processes: list[subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = started(tmp_path, ignoring=False)
    processes.append(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 130
    assert (out, err.strip()) == ("", "interrupted")


# A signal that comes while a module is read, where a dataclass is made of text.
WHILE_IT_IS_READ = """
import os, signal, sys, time
from kimi_prov.runner import signals

signal.signal(signal.SIGTERM, signals.end)
try:
    exec("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)")
except KeyboardInterrupt:
    pass
sys.exit(130)
"""


def test_the_code_is_the_same_while_modules_are_read(tmp_path: Path) -> None:
    (tmp_path / "reads.py").write_text(WHILE_IT_IS_READ)
    done = subprocess.run(
        [sys.executable, "-m", "reads"], check=False, cwd=tmp_path, timeout=HANGS_S
    )
    assert done.returncode == 130


def test_under_nohup_it_goes_on(tmp_path: Path, processes: list[subprocess.Popen[str]]) -> None:
    process = started(tmp_path, ignoring=True)
    processes.append(process)
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(SHEET.read_text(), timeout=HANGS_S)
    assert process.returncode == 0, err
    assert "quote-8x-h200" in out
