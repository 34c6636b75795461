"""One apply at a time for an inventory: a local lock, which the kernel releases at exit."""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import json
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import processes
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.user_dirs import make_private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The processes of a killed run are ended within seconds; a new run waits so long for that.
TIMEOUT_S = 15.0


@contextmanager
def hold_lock(inventory: Path, command: str, state: Path) -> Iterator[int]:
    """Hold the inventory's lock; gives its file descriptor.

    `state` is the folder of this user's state. Raises UserError (exit 3) that names the holder.
    """
    real = inventory.resolve()
    folder = state / "locks"
    path = folder / f"{hashlib.sha256(str(real).encode()).hexdigest()[:16]}.json"
    try:
        make_private(state)
        make_private(folder)
        # A link could lead to another file, which we would empty.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise UserError(
            f"{path}: the lock cannot be made: {error.strerror}",
            fix="remove what is in its place, or set XDG_STATE_HOME to a folder of your own",
        ) from error
    try:
        _take_lock(descriptor, inventory)
        holder = {
            "pid": os.getpid(),
            "user": getpass.getuser(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "command": command,
            "inventory": str(real),
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int, inventory: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read_holder(descriptor)
            if processes.is_alive(holder.get("pid")) or time.monotonic() > deadline:
                raise _make_refusal(inventory, holder) from None
            time.sleep(0.2)
        else:
            return


def _read_holder(descriptor: int) -> dict[str, Any]:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _make_refusal(inventory: Path, holder: dict[str, Any]) -> UserError:
    pid = holder.get("pid", "?")
    return UserError(
        f"{inventory}: `kimi-prov {holder.get('command', 'apply')}` is running on it: "
        f"process {pid} of {holder.get('user', '?')}, since {holder.get('since', '?')}",
        fix=f"wait until it ends, or end it:  kill {pid}",
        exit_code=ExitCode.BLOCKED,
    )
