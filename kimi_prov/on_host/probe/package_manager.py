"""The state of apt and dpkg: who holds their locks, and which packages are half installed."""

from __future__ import annotations

import fcntl
import os
import re
import struct
from typing import TYPE_CHECKING

from kimi_prov.on_host.probe.network import find_unit
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.machine import Machine

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts.machine import PackageLock

# In the order in which apt takes them.
LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
# dpkg(1), package states: any other state was begun and not finished.
_ENDED = ("installed", "config-files", "not-installed")
# States that dpkg had not yet written to its status file when it was interrupted.
_JOURNAL = "/var/lib/dpkg/updates/[0-9]*"
_PACKAGE = re.compile(r"^Package: (\S+)$", re.MULTILINE)
_STATE = re.compile(r"^Status: \S+ \S+ (\S+)$", re.MULTILINE)
# struct flock where file offsets have 64 bits: type, whence, start, length, process.
_FLOCK = "hhqqi"


def find_holder(machine: Machine) -> PackageLock | None:
    """Return who holds a lock of apt or dpkg; None without a holder that we may see."""
    for path in LOCKS:
        pid = _find_locker(machine.path(path))
        if pid is None:
            continue
        if pid <= 0:
            return {"lock": path, "pid": 0, "process": None, "unit": None}
        return {
            "lock": path,
            "pid": pid,
            "process": machine.read(f"/proc/{pid}/comm"),
            "unit": find_unit(machine, str(pid)),
        }
    return None


def _find_locker(path: str) -> int | None:
    """Return the process that holds a lock; 0 or less where we see none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        found: tuple[int, ...] = struct.unpack(
            _FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, question)
        )
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None if found[0] == fcntl.F_UNLCK else found[4]


def list_unfinished(machine: Machine) -> list[str] | None:
    """Return packages that dpkg has not finished; None where dpkg is not the package manager.

    Includes packages that are being installed at this moment: check the holder of the lock too.
    """
    status = machine.read("/var/lib/dpkg/status")
    if status is None:
        return None
    texts = [status, *(machine.read(path) or "" for path in machine.glob(_JOURNAL))]
    states: dict[str, str] = {}
    for block in "\n\n".join(texts).split("\n\n"):
        name, state = _PACKAGE.search(block), _STATE.search(block)
        if name and state:
            states[name.group(1)] = state.group(1)
    return sorted(name for name, state in states.items() if state not in _ENDED)


def main(argv: list[str]) -> int:
    """`package-manager`: print who holds its locks, and unfinished packages, as one JSON object."""
    assert not argv  # noqa: S101  (a fault of the caller's)
    machine = Machine()
    found = find_holder(machine)
    return answer({"ok": True, "holder": found, "unfinished": list_unfinished(machine) or []})
