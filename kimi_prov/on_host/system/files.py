"""Small file operations that survive a power cut."""

from __future__ import annotations

import contextlib
import json
import os


def write_json(path: str, document: object, *, durable: bool = True, mode: int = 0o644) -> None:
    """Replace `path` by the document in one step: a reader sees the old or the new, whole.

    `durable` forces it to the disk first; leave it out for files that live in memory anyway.
    """
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    temporary = f"{path}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        os.fchmod(stream.fileno(), mode)
        json.dump(document, stream, indent=1, sort_keys=True)
        stream.write("\n")
        stream.flush()
        if durable:
            os.fsync(stream.fileno())
    os.replace(temporary, path)
    if durable:
        sync_directory(os.path.dirname(path))


def read_json(path: str) -> object:
    """Return the document, or None where there is no file or it was cut short by a crash."""
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (FileNotFoundError, ValueError):
        return None


def sync_directory(path: str) -> None:
    """Make renames inside a directory last through a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: str) -> None:
    """Unlink a file that may be gone already."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def size_of(path: str) -> int | None:
    """Bytes of a regular file, or None where there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None
