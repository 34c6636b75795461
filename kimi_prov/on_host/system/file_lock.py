"""A lock that only its owner can take: a file of mode 0600, held while its process lives.

Any user may lock a folder or a file that he can read. This file is made so that nobody else can
open it, in a folder that nobody else can write to, and is removed at the end.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from typing import TYPE_CHECKING

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system.files import read_text, remove

if TYPE_CHECKING:
    from collections.abc import Iterator

_POLL_INTERVAL_S = 0.05


class TakenError(Exception):
    """Another process held the lock for the whole waiting time; `pid` names it where known."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(f"process {pid}" if pid else "another process")


@contextlib.contextmanager
def lock(path: str, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the lock file `path`. Raises TakenError after `wait_s`."""
    descriptor = _acquire(path, wait_s)
    try:
        yield
    finally:
        remove(path)
        os.close(descriptor)


def _acquire(path: str, wait_s: float) -> int:
    deadline = time.monotonic() + wait_s
    while True:
        descriptor = _open(path)
        if try_lock(descriptor):
            # The former holder removes the file, so the opened file may be one that is gone
            # already.
            if _is_at(path, descriptor):
                return descriptor
        elif time.monotonic() >= deadline:
            pid = _find_holder(descriptor)
            os.close(descriptor)
            raise TakenError(pid)
        else:
            time.sleep(_POLL_INTERVAL_S)
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder, unless another process has; never waits."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: str) -> int:
    """Open the lock file; a link, or a file that others could open as well, is replaced."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    for _ in range(3):
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        else:
            if _is_private(os.fstat(descriptor), os.path.dirname(path)):
                return descriptor
            os.close(descriptor)
        remove(path)
    raise HostError(f"{path}: another process replaces this lock file again and again")


def _is_private(about: os.stat_result, folder: str) -> bool:
    trusted = {0, os.geteuid(), os.stat(folder).st_uid}
    return stat.S_ISREG(about.st_mode) and not about.st_mode & 0o077 and about.st_uid in trusted


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _find_holder(descriptor: int) -> int | None:
    """Return the process that holds the lock, as the kernel lists it."""
    about = os.fstat(descriptor)
    device = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    for line in read_text("/proc/locks").splitlines():
        words = line.split()
        if words[1] == "FLOCK" and words[5] == device:
            return int(words[4])
    return None
