"""Who holds a lock of apt, seen in a process that does."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from machine_of_files import tree

from kimi_prov.on_host.probe import package_manager

if TYPE_CHECKING:
    from pathlib import Path

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("lock", package_manager.LOCKS)
def test_who_holds_a_lock_of_apt_is_named_by_its_process(tmp_path: Path, lock: str) -> None:
    machine = tree(tmp_path, dict.fromkeys(package_manager.LOCKS, ""))
    argv = [sys.executable, "-c", HOLD, machine.path(lock)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, **pipes) as other:  # type: ignore[call-overload]
        assert other.stdout.readline() == "held\n"
        held = package_manager.find_holder(machine)
        other.communicate()
    assert held == {"lock": lock, "pid": other.pid, "process": None, "unit": None}
    assert package_manager.find_holder(machine) is None
