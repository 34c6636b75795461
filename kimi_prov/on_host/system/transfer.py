"""An archive on its way to or from another computer: a file that one user may fetch or upload.

It is in TRANSFER for as long as that takes; one at a time, because the apply lock is held.

Decides: what a backup holds, and where it is restored (their way to and from the machine).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import stat
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.system.envelope import answer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ARCHIVE = "archive.tar.gz"
_BLOCK = 1 << 20


def make_archive(
    paths: Paths, reader: int, write: Callable[[int], dict[str, Any]]
) -> dict[str, Any]:
    """Make `write` fill an archive that the user `reader` may fetch; return its answer.

    Added to it: `path`, `bytes` and `sha256` of the archive.
    """
    folder = clear_folder(paths)
    archive = folder / ARCHIVE
    descriptor = os.open(archive, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        told = write(descriptor)
        about = {"path": str(archive), **_describe_archive(descriptor)}
        os.fchown(descriptor, reader, -1)
    finally:
        os.close(descriptor)
    os.chown(str(folder), reader, -1)
    return {**told, **about}


def prepare_folder(paths: Paths, writer: int) -> dict[str, Any]:
    """Make an empty folder into which the user `writer` may put an archive."""
    folder = clear_folder(paths)
    os.chown(str(folder), writer, -1)
    return {"path": str(folder / ARCHIVE)}


@contextlib.contextmanager
def open_received(paths: Paths, sha256: str) -> Iterator[int]:
    """Yield the archive that came as a descriptor; its name is removed by then.

    Raises HostError where its SHA-256 is another.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(paths.transfer / ARCHIVE, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise HostError("the archive that came is not a regular file", "restore again")
        if _describe_archive(descriptor)["sha256"] != sha256:
            raise HostError("the archive arrived incomplete", "restore again", retryable=True)
        os.lseek(descriptor, 0, os.SEEK_SET)
        remove_archive(paths)
        yield descriptor
    finally:
        os.close(descriptor)


def remove_archive(paths: Paths) -> None:
    """Remove the archive from the machine."""
    shutil.rmtree(str(paths.transfer), ignore_errors=True)


def clear_folder(paths: Paths) -> Path:
    """Make TRANSFER empty, for root alone, and return it; an earlier run's files are removed."""
    remove_archive(paths)
    paths.transfer.mkdir(mode=0o700)
    return paths.transfer


def _describe_archive(descriptor: int) -> dict[str, Any]:
    digest = hashlib.sha256()
    size = 0
    os.lseek(descriptor, 0, os.SEEK_SET)
    for block in iter(lambda: os.read(descriptor, _BLOCK), b""):
        digest.update(block)
        size += len(block)
    return {"sha256": digest.hexdigest(), "bytes": size}


class Steps(NamedTuple):
    """The actions of a subcommand for archives; `make` and `receive` take a user's number."""

    make: Callable[[Paths, int], dict[str, Any]]
    receive: Callable[[Paths, int], dict[str, Any]]
    restore: Callable[[Paths, str], dict[str, Any]]


def run_command(name: str, steps: Steps, argv: list[str]) -> int:
    """Run one of the actions, or `end`; print JSON."""
    paths = Paths()
    if argv == ["end"]:
        remove_archive(paths)
        return answer({"ok": True})
    if len(argv) == 2 and argv[0] == "restore":
        # A cut connection must not end it between stopping a service and starting it.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return answer({"ok": True, **steps.restore(paths, argv[1])})
    login = argv[2] if len(argv) == 3 and argv[1] == "--for" else ""
    if argv[:1] in (["make"], ["receive"]) and login.isdigit():
        step = steps.make if argv[0] == "make" else steps.receive
        return answer({"ok": True, **step(paths, int(login))})
    raise HostError(f"usage: {name} make|receive --for UID, restore SHA256, end")
