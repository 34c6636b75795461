"""Open a file in another user's directory, without following a link to a foreign file.

Root reads such files and writes their contents where all may read. So it walks the path step by
step, keeps each directory that it has checked open, and opens the file from there.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass

from kimi_prov.contract.errors import HostError

# Opens a path without its content: a FIFO would block, a device would act.
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# As many links as the kernel follows.
_MAX_LINKS = 40
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


@dataclass(frozen=True)
class _Link:
    """A symbolic link that is being followed: its directory, and itself."""

    holder: os.stat_result
    link: os.stat_result

    def may_lead_to(self, target: os.stat_result) -> bool:
        """Return whether a user who could have written the link could read its target anyway."""
        holder = self.holder
        if holder.st_uid == 0 and not holder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return True
        return holder.st_uid == target.st_uid and self.link.st_uid in (0, holder.st_uid)


def open_regular(path: str) -> int:
    """Return a descriptor to read a file.

    Raises OSError, and HostError where it is not a regular file, or where a link leads to a file
    whose owner is not the owner of the link's directory.
    """
    place = _walk_path(path)
    try:
        kind = stat.S_IFMT(os.fstat(place).st_mode)
        if kind != stat.S_IFREG:
            raise HostError(
                f"{path}: is {_KINDS.get(kind, 'something else')}, not a regular file",
                "put the file itself there",
            )
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(place)


def _walk_path(path: str) -> int:
    """Walk to where a path leads; return a descriptor of it."""
    here = os.open("/", _LOOK)
    ahead: list[str | _Link] = _split_path(os.path.abspath(path))
    links = 0
    try:
        while ahead:
            step = ahead.pop()
            if isinstance(step, _Link):
                _require_allowed(step, os.fstat(here), path)
                continue
            there = os.open(step, _LOOK, dir_fd=here)
            state = os.fstat(there)
            if not stat.S_ISLNK(state.st_mode):
                os.close(here)
                here = there
                continue
            target = os.readlink("", dir_fd=there)
            os.close(there)
            links += 1
            _require_end(links, path)
            ahead += [_Link(os.fstat(here), state), *_split_path(target)]
            if target.startswith("/"):
                os.close(here)
                here = os.open("/", _LOOK)
    except BaseException:
        os.close(here)
        raise
    return here


def _require_end(links: int, path: str) -> None:
    if links > _MAX_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _split_path(path: str) -> list[str | _Link]:
    """Return the names of a path, the first last."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _require_allowed(link: _Link, target: os.stat_result, path: str) -> None:
    if not link.may_lead_to(target):
        raise HostError(
            f"{path}: a symbolic link in a directory of user {link.holder.st_uid} leads to what "
            f"user {target.st_uid} owns",
            "put the file itself there, or name the directory that it is in",
        )
