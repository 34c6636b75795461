"""Processes of a lab that have no record: SSH sessions to its hosts, interrupted starts.

They are recognised by an open connection to a lab host, or by the lab's id in their environment,
never by their name.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from kimi_prov.lab.machine import Machine, read_recorded_kind
from kimi_prov.lab.state import MARK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kimi_prov.lab.inventory import Lab
    from kimi_prov.lab.state import LabState


def end_sessions(lab: Lab, state: LabState) -> None:
    """End ssh sessions to the lab's hosts, such as those that Ansible keeps open for a minute."""
    hosts = {
        (machine.address, machine.port)
        for host in lab.hosts
        if read_recorded_kind(state, host.name)
        for machine in [Machine.existing(lab, host.name)]
    }
    _end_processes(
        process for process in _list_own_processes() if _list_connections(process) & hosts
    )


def end_unrecorded(lab: Lab) -> None:
    """End processes with the lab's id: machines whose record was lost."""
    _end_processes(_find_marked(lab))


def has_processes(lab: Lab) -> bool:
    """Whether a process has the lab's id in its environment."""
    return any(True for _ in _find_marked(lab))


def _find_marked(lab: Lab) -> Iterable[psutil.Process]:
    mark = f"{MARK}={lab.ident}".encode()
    return (p for p in _list_own_processes() if mark in _read_environment(p.pid).split(b"\0"))


def _list_own_processes() -> Iterable[psutil.Process]:
    own = {psutil.Process().pid, *(parent.pid for parent in psutil.Process().parents())}
    return (process for process in psutil.process_iter() if process.pid not in own)


def _list_connections(process: psutil.Process) -> set[tuple[str, int]]:
    try:
        return {(c.raddr.ip, c.raddr.port) for c in process.net_connections("tcp") if c.raddr}
    except psutil.Error:
        return set()


def _read_environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _end_processes(processes: Iterable[psutil.Process]) -> None:
    ending = list(processes)
    for process in ending:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(ending, timeout=10)
