"""What the processes of an engine do, read from the kernel without stopping a process.

The kernel's own stack of a process (/proc/PID/stack) needs CAP_SYS_ADMIN, which the watchdog does
not have: instead, the kernel function in which each thread waits is reported.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.on_host.system.files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_SHOWN = re.compile(
    r"^(?:Name|State|Tgid|PPid|TracerPid|VmRSS|Threads|SigQ|SigPnd|ShdPnd|SigBlk|Cpus_allowed_list|"
    r"Mems_allowed_list|voluntary_ctxt_switches|nonvoluntary_ctxt_switches):",
)
_MAX_THREADS = 2000
# The kernel's numbers of the states of a TCP connection.
_TCP = {
    "01": "established", "02": "syn sent", "03": "syn received", "04": "fin wait 1",
    "05": "fin wait 2", "06": "time wait", "07": "closed", "08": "close wait", "09": "last ack",
    "0A": "listens", "0B": "closing",
}  # fmt: skip
_TICKS = os.sysconf("SC_CLK_TCK")


def list_pids(cgroup: str, groups: Path = _CGROUPS) -> list[int]:
    """Return the processes of a unit by its control group, the earliest started first."""
    if not cgroup:
        return []
    listed = read_text(groups / cgroup.lstrip("/") / "cgroup.procs").split()
    return sorted(int(pid) for pid in listed if pid.isdigit())


def sum_cpu_seconds(pids: list[int], proc: Path = PROC) -> float:
    """Return the seconds of CPU that these processes have used; 0 for one that is gone."""
    used = 0
    for pid in pids:
        fields = _read_stat(proc / str(pid))
        used += int(fields[11]) + int(fields[12]) if fields else 0
    return used / _TICKS


def _read_stat(process: Path) -> list[str]:
    """Return the fields of `stat` after the name, which may hold any characters."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def describe_processes(pids: list[int], proc: Path = PROC) -> str:
    """Return, for each process, its state, and where in the kernel its threads are."""
    return "\n".join(line for pid in pids for line in _describe_process(pid, proc))


def _describe_process(pid: int, proc: Path) -> Iterator[str]:
    process = proc / str(pid)
    status = _read_or_explain(process / "status")
    if not status:
        return
    yield f"process {pid}"
    yield from (f"  {line}" for line in status.splitlines() if _SHOWN.match(line))
    command = _read_or_explain(process / "cmdline").replace("\0", " ").strip()
    yield f"  command: {command[:400]}"
    where: dict[tuple[str, str, str], int] = Counter()
    for thread in sorted((process / "task").glob("*"), key=lambda path: path.name)[:_MAX_THREADS]:
        fields = _read_stat(thread)
        call = _read_or_explain(thread / "syscall").split(" ")[0].strip() or "?"
        waits = _read_or_explain(thread / "wchan").strip() or "?"
        where[fields[0] if fields else "?", waits, call] += 1
    for (state, waits, call), count in sorted(where.items(), key=lambda row: -row[1]):
        yield f"  {count} threads: state {state}, in the kernel at {waits}, system call {call}"
    yield ""


def _read_or_explain(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        return "" if isinstance(error, FileNotFoundError) else f"? ({error.strerror})"


def describe_sockets(pids: list[int], proc: Path = PROC) -> str:
    """Return the TCP connections of these processes: ends, state, bytes that were not read yet."""
    owner = {inode: pid for pid in pids for inode in _list_inodes(proc / str(pid))}
    lines = []
    for name in ("net/tcp", "net/tcp6"):
        for row in read_text(proc / name).splitlines()[1:]:
            words = row.split()
            if len(words) < 10 or words[9] not in owner:
                continue
            sent, received = (int(part, 16) for part in words[4].split(":"))
            lines.append(
                f"process {owner[words[9]]}: {_format_end(words[1])} to {_format_end(words[2])}, "
                f"{_TCP.get(words[3], words[3])}, {received} bytes unread, {sent} unsent"
            )
    return "\n".join(sorted(lines)) + "\n"


def _list_inodes(process: Path) -> Iterator[str]:
    try:
        names = os.listdir(str(process / "fd"))
    except OSError:
        return
    for name in names:
        try:
            target = os.readlink(str(process / "fd" / name))
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[len("socket:[") : -1]


def _format_end(text: str) -> str:
    address, _, port = text.partition(":")
    if len(address) == 8:
        address = ".".join(str(int(address[at : at + 2], 16)) for at in (6, 4, 2, 0))
    return f"{address}:{int(port, 16)}"
