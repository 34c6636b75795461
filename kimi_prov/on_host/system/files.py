"""Small file operations: a reader sees the old content or the new one, also after a power cut."""

from __future__ import annotations

import contextlib
import errno
import grp
import json
import os
import pwd
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, Union

if TYPE_CHECKING:
    from collections.abc import Iterator

PathLike = Union[str, Path]


def write_json(path: str, document: object, *, durable: bool = True, mode: int = 0o644) -> None:
    """Replace `path` by the document in one step: a reader sees the old or the new one complete.

    `durable` flushes it to the disk first; leave it out for files in memory.
    """
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    with _replace(path) as stream:
        json.dump(document, stream, indent=1, sort_keys=True)
        stream.write("\n")
        stream.flush()
        if durable:
            os.fsync(stream.fileno())
        os.fchmod(stream.fileno(), mode)
    if durable:
        sync_directory(os.path.dirname(path))


def write_atomic(path: Path, content: str, mode: int, group: str = "root") -> None:
    """Replace `path` in one step; it never exists with a wider mode than `mode`."""
    with _replace(str(path)) as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
        if os.geteuid() == 0:
            os.fchown(stream.fileno(), *find_owner_ids("root", group))
        os.fchmod(stream.fileno(), mode)


@contextlib.contextmanager
def _replace(path: str) -> Iterator[TextIO]:
    """Write beside `path`, for the owner alone until its mode is set, and rename it to `path`."""
    folder, name = os.path.split(path)
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            yield stream
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise


def make_directory(path: Path, mode: int, group: str = "root", *, check: bool = False) -> bool:
    """Make a directory with this mode and group; True when something was (or would be) changed."""
    wanted = find_owner_ids("root", group)
    if path.is_dir():
        state = path.stat()
        same_owner = os.geteuid() != 0 or (state.st_uid, state.st_gid) == wanted
        if state.st_mode & 0o7777 == mode and same_owner:
            return False
    if check:
        return True
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(str(path), *wanted)
    path.chmod(mode)
    return True


def find_owner_ids(user: str, group: str) -> tuple[int, int]:
    """Return user and group number; root's where the name does not exist (yet)."""
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        uid = 0
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        gid = 0
    return uid, gid


def read_text(path: PathLike) -> str:
    """Return the content of a file, empty where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def read_json(path: PathLike, *, links: bool = True) -> dict[str, Any]:
    """Return a JSON object from a file; empty where there is none, or only a part of one.

    Anything but a regular file counts as none, and is never waited for. `links` False, for a folder
    that another user may write to: a symbolic link counts as none too.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
    try:
        with open(path, encoding="utf-8", opener=lambda name, _: os.open(name, flags)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return {}
            value = json.load(stream)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, RecursionError):
        return {}
    except OSError as error:
        if links or error.errno != errno.ELOOP:
            raise
        return {}
    return value if isinstance(value, dict) else {}


def sync_directory(path: str) -> None:
    """Make renames inside a directory durable through a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: str) -> None:
    """Unlink a file that may be gone already."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def find_size(path: str) -> int | None:
    """Return the bytes of a regular file, or None where there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def count_disk_bytes(folder: PathLike) -> int:
    """Return the bytes of disk that a folder takes, without links and vanished files."""
    total = 0
    for top, _, names in os.walk(str(folder)):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(top, name)).st_blocks * 512
    return total
