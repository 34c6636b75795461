"""Interrupting over SSH: shared connections leave the process tree, and must end too."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from machines import KIMI_PROV

if TYPE_CHECKING:
    from machines import Host

pytestmark = pytest.mark.lab


def titles(word: str) -> list[str]:
    """Title of every live process that has `word` in it."""
    found = []
    for process in psutil.process_iter():
        try:
            title = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if word in title:
            found.append(title)
    return found


def until(condition, seconds: float) -> bool:  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)]
)
def test_no_connection_outlives_the_command_line(
    virgin_host: Host, number: signal.Signals, code: int
) -> None:
    argv = [KIMI_PROV, "apply", str(virgin_host.inventory), "--limit", virgin_host.name, "--check"]
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    mine = f"/kimi-{process.pid}-"
    try:
        assert until(lambda: any("[mux]" in t for t in titles(mine)), 60), "no shared connection"
    finally:
        process.send_signal(number)
    assert process.wait(20) == code
    assert until(lambda: not titles(mine), 0.5 if code == 130 else 10)


def test_no_connection_outlives_a_good_end(virgin_host: Host) -> None:
    argv = [KIMI_PROV, "status", str(virgin_host.inventory), "--limit", virgin_host.name]
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    process.wait(60)
    assert titles(f"/kimi-{process.pid}-") == []
