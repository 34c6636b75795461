"""One file for what one rank holds: a first page, the bytes, and a table of contents at the end.

The first page is written last, then the file is made durable and renamed: a half-written file never
has the name that a reader looks for. Nothing in a file is executed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAGIC = b"kimi-prepared-1\n"
SUFFIX, DAMAGED, PARTIAL = ".prepared", ".damaged", ".partial"
PAGE = 4096
# Bytes of one check sum, and of one step of a copy.
CHUNK = 64 << 20
# The table of contents of a rank has some thousand rows.
_MAX_CONTENTS = 256 << 20


class DamagedError(Exception):
    """The file is not what was written, or not for this rank; the message says why."""


@dataclass(frozen=True)
class Block:
    """The bytes of one storage in the file, with a sum for each chunk of them."""

    path: str
    offset: int
    size: int
    sums: tuple[int, ...]


@dataclass(frozen=True)
class Contents:
    """All that a file says about itself."""

    key: dict[str, object]
    tensors: list[list[Any]]
    values: dict[str, float | bool]
    blocks: tuple[Block, ...]


def name_file(folder: Path, rank: str, key: dict[str, object]) -> Path:
    """Name the file of a rank and a key."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    return folder / f"{rank}-{digest}{SUFFIX}"


class Writer:
    """Writes one file; unless it is published, nothing of it stays."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
        self._file: BinaryIO = self._partial.open("wb", buffering=0)
        # Who finds the file locked leaves it alone; a killed writer's lock is gone.
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self.size = 0
        self._end = PAGE
        self._file.seek(PAGE)
        self._blocks: list[Block] = []

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)

    def add(self, path: str, chunks: Iterator[tuple[memoryview, int]]) -> None:
        """Append a storage by its chunks, each with its sum."""
        offset, size, sums = self._end, 0, []
        for data, total in chunks:
            self._write(data)
            size += len(data)
            sums.append(total)
        self._end = -(-(offset + size) // PAGE) * PAGE
        self._file.seek(self._end)
        self._blocks.append(Block(path, offset, size, tuple(sums)))

    def finish(
        self, key: dict[str, object], tensors: list[list[Any]], values: dict[str, float | bool]
    ) -> None:
        """Seal the file and publish it."""
        self.seal(key, tensors, values)
        self.publish()

    def seal(
        self, key: dict[str, object], tensors: list[list[Any]], values: dict[str, float | bool]
    ) -> None:
        """Write the contents and the first page, and make them durable."""
        rows = [[b.path, b.offset, b.size, list(b.sums)] for b in self._blocks]
        text = json.dumps({"key": key, "tensors": tensors, "values": values, "blocks": rows})
        data = text.encode()
        self._write(memoryview(data))
        head = MAGIC + self._end.to_bytes(8, "little") + len(data).to_bytes(8, "little")
        head += hashlib.sha256(data).digest()
        self._file.seek(0)
        self._write(memoryview(head.ljust(PAGE, b"\0")))
        os.fsync(self._file.fileno())
        self.size = self._end + len(data)

    def publish(self) -> None:
        """Give a sealed file its name: from now on it counts."""
        self._partial.rename(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _write(self, data: memoryview) -> None:
        while len(data):
            data = data[self._file.write(data) :]


def read_contents(path: Path, key: dict[str, object]) -> Contents:
    """Read what a file says about itself. Raises DamagedError; FileNotFoundError without a file."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(PAGE)
        if len(head) < PAGE or not head.startswith(MAGIC):
            raise DamagedError("its first page is not that of prepared weights")
        at = len(MAGIC)
        start = int.from_bytes(head[at : at + 8], "little")
        length = int.from_bytes(head[at + 8 : at + 16], "little")
        if not PAGE <= start <= size or length > _MAX_CONTENTS or start + length != size:
            raise DamagedError(f"it has {size} bytes, its first page says {start + length}")
        file.seek(start)
        data = file.read(length)
    if hashlib.sha256(data).digest() != head[at + 16 : at + 48]:
        raise DamagedError("its table of contents has another SHA-256")
    try:
        return _parse_contents(json.loads(data), key, start)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"its table of contents has another form ({error})") from None


def _parse_contents(document: Any, key: dict[str, object], end: int) -> Contents:  # noqa: ANN401
    if document["key"] != json.loads(json.dumps(key)):
        raise DamagedError("it has another key")
    blocks = []
    for path, offset, size, sums in document["blocks"]:
        chunks = -(-size // CHUNK)
        if not PAGE <= offset <= offset + size <= end or len(sums) != chunks:
            raise DamagedError(f"{path} lies outside of it")
        blocks.append(Block(str(path), offset, size, tuple(map(int, sums))))
    return Contents(document["key"], document["tensors"], document["values"], tuple(blocks))


def mark_used(path: Path) -> None:
    """Note that a start has used the file; of one rank the newest is the one in use."""
    with contextlib.suppress(OSError):
        os.utime(path)


def put_aside(path: Path) -> None:
    """Give a file a name that no reader looks for; an older one of that name goes."""
    with contextlib.suppress(FileNotFoundError):
        path.rename(path.with_name(path.name + DAMAGED))


def remove_partial(folder: Path, rank: str) -> list[str]:
    """Remove what killed writers of a rank left; returns the names."""
    removed = []
    for path in folder.glob(f".{rank}-*{PARTIAL}"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            removed.append(path.name)
    return removed


def count_free_bytes(folder: Path) -> int:
    """Count the bytes that a writer may still use where the folder is, or will be."""
    place = next(p for p in (folder, *folder.parents) if p.is_dir())
    space = os.statvfs(place)
    return space.f_bavail * space.f_frsize
