"""Interrupting over SSH: shared connections leave the process tree, and must end too."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import psutil
import pytest
from machines import KIMI_PROV
from waiting import HANGS_S, until

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


def connected(mine: str) -> bool:
    """Whether a connection that this command line shares among its tasks is up."""
    return any("[mux]" in title for title in titles(mine))


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
        assert until(lambda: connected(mine)), "no shared connection"
    finally:
        process.send_signal(number)
    assert process.wait(HANGS_S) == code
    # By itself a connection stays for a minute; one that is being ended is given half of that.
    assert until(lambda: not titles(mine), 30)


def test_no_connection_outlives_a_good_end(virgin_host: Host) -> None:
    argv = [KIMI_PROV, "status", str(virgin_host.inventory), "--limit", virgin_host.name]
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    mine = f"/kimi-{process.pid}-"
    seen = until(lambda: connected(mine) or process.poll() is not None) and connected(mine)
    assert process.wait(HANGS_S) == 1, "nothing is served there"
    assert seen, "no shared connection: there was nothing to end"
    assert titles(mine) == []
