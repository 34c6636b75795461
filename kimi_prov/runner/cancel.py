"""End every process that a run started on this machine, and no other.

Ansible's workers leave the process group, asynchronous tasks leave the process tree, and shared
SSH connections leave both. So processes are found by descent, by the run's id in their environment,
and by the run's private folder in their title (ssh overwrites its environment with its title).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import psutil

from kimi_prov.runner.arguments import RUN

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

GRACE_S = 1.5
_POLL_INTERVAL_S = 0.02


def find_marked(run_id: str, private: Path) -> set[psutil.Process]:
    """Return live processes with the run's id in their environment or its folder in their title."""
    processes = set()
    own = os.getpid()
    title = f"{private}/"
    for process in psutil.process_iter():
        try:
            if process.pid == own or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(RUN) == run_id or title in " ".join(process.cmdline()):
                processes.add(process)
        except (psutil.Error, OSError):
            continue
    return processes


def find_ssh_masters(private: Path) -> set[psutil.Process]:
    """Return the shared SSH connections of a run, which would outlive it by a minute."""
    return {
        process for process in find_marked("", private) if _read_title(process).startswith("ssh:")
    }


def end_processes(processes: Iterable[psutil.Process], grace_s: float = GRACE_S) -> None:
    """Ask the processes to end, and kill those that have not after `grace_s` seconds."""
    alive = list(processes)
    for process in alive:
        _ignore_gone(process.terminate)
    alive = _wait(alive, grace_s)
    for process in alive:
        _ignore_gone(process.kill)
    _wait(alive, grace_s)


def _wait(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until the processes have ended; return those that run after `timeout_s` seconds.

    A zombie has ended: in a container the first process may collect it seconds later, or never.
    """
    deadline = time.monotonic() + timeout_s
    while alive := [process for process in processes if _is_running(process)]:
        if time.monotonic() > deadline:
            return alive
        time.sleep(_POLL_INTERVAL_S)
    return []


def end_run(run_id: str, private: Path, *, grace_s: float = GRACE_S) -> list[int]:
    """End every process of the run; return the ids of those that could not be ended.

    Looks again for processes that were started meanwhile.
    """
    deadline = time.monotonic() + 4 * grace_s
    while victims := _add_children(find_marked(run_id, private)):
        end_processes(victims, grace_s)
        if time.monotonic() > deadline:
            break
    return sorted(process.pid for process in find_marked(run_id, private))


def _add_children(roots: set[psutil.Process]) -> set[psutil.Process]:
    """Add descendants without the run's id: sudo, for one, starts with a clean environment."""
    processes = set(roots)
    for process in roots:
        try:
            processes.update(process.children(recursive=True))
        except psutil.Error:
            continue
    return processes


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _read_title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _ignore_gone(act: object) -> None:
    try:
        act()  # type: ignore[operator]
    except psutil.Error:
        return
