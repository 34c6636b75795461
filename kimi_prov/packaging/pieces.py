"""Files cut into pieces for carriers and file systems that hold no more, and joined again.

The files lie one behind the other in one stream; a piece is a part of it. Whoever carries them
compares each piece with its SHA-256, and each joined file with the index that names it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

LIST = "pieces.json"
_BLOCK = 1 << 20
_MAX_LIST_BYTES = 64 << 20
_NAME = re.compile(r"[a-z0-9-]{1,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class CutFile(TypedDict):
    """A file: the bytes of the stream from `start` to before `end`."""

    path: str
    start: int
    end: int


class Piece(TypedDict):
    """A piece of the stream."""

    name: str
    bytes: int
    sha256: str


class Cut(NamedTuple):
    """What was cut, and into what."""

    files: list[CutFile]
    pieces: list[Piece]


class DamagedError(Exception):
    """Pieces cannot be joined; its text names each of them."""


def cut(
    files: Iterable[tuple[str, Path]], piece_bytes: int, name_piece: Callable[[int], Path]
) -> Cut:
    """Cut files into pieces; `name_piece` says where the piece of a number is written."""
    rows: list[CutFile] = []
    writer = _Writer(piece_bytes, name_piece)
    for name, path in files:
        start = writer.position
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                writer.write(memoryview(block))
        rows.append({"path": name, "start": start, "end": writer.position})
    writer.close()
    return Cut(rows, writer.pieces)


class _Writer:
    """The stream, cut while it is written."""

    def __init__(self, piece_bytes: int, name_piece: Callable[[int], Path]) -> None:
        self._piece_bytes, self._name_piece = piece_bytes, name_piece
        self.position = 0
        self.pieces: list[Piece] = []
        self._file: BinaryIO | None = None
        self._name, self._bytes, self._digest = "", 0, hashlib.sha256()

    def write(self, data: memoryview) -> None:
        while data:
            if self._file is None:
                path = self._name_piece(len(self.pieces))
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("wb")
                self._name, self._bytes, self._digest = path.name, 0, hashlib.sha256()
            part = data[: self._piece_bytes - self._bytes]
            self._file.write(part)
            self._digest.update(part)
            self._bytes += len(part)
            self.position += len(part)
            data = data[len(part) :]
            if self._bytes == self._piece_bytes:
                self.close()

    def close(self) -> None:
        if self._file is None:
            return
        self._file.close()
        self._file = None
        digest = self._digest.hexdigest()
        self.pieces.append({"name": self._name, "bytes": self._bytes, "sha256": digest})


def read_names(folder: Path) -> set[str]:
    """Return the names of the pieces in a folder, and of their list; none where there is none."""
    if not (folder / LIST).is_file():
        return set()
    return {LIST, *(piece["name"] for piece in _read_list(folder).pieces)}


def join(folder: Path, sizes: Mapping[str, int]) -> None:
    """Write the files of `sizes` that are not there yet from the pieces beside them.

    Others are not written, whatever the list of the pieces says. Raises DamagedError.
    """
    if not (folder / LIST).is_file():
        return
    with _lock(folder):
        found = _read_list(folder)
        lacking = [
            row
            for row in found.files
            if row["path"] in sizes and not _is_there(folder / row["path"], sizes[row["path"]])
        ]
        if not lacking:
            return
        spans = _check_pieces(folder, found.pieces, lacking)
        needed, free = sum(_size(row) for row in lacking), shutil.disk_usage(folder).free
        if needed > free:
            message = f"{folder}: {needed} bytes are needed to join the pieces, {free} are free"
            raise DamagedError(message)
        for row in lacking:
            _write_file(folder, row, spans)


def _is_there(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _size(row: CutFile) -> int:
    return row["end"] - row["start"]


Span = tuple[int, int, str]


def _check_pieces(folder: Path, pieces: Sequence[Piece], rows: Sequence[CutFile]) -> list[Span]:
    """Compare the pieces that hold these files; return start, end and name of each piece."""
    spans, faults, start = [], [], 0
    for piece in pieces:
        end = start + piece["bytes"]
        spans.append((start, end, piece["name"]))
        if any(row["start"] < end and row["end"] > start for row in rows):
            faults += _check_piece(folder / piece["name"], piece)
        start = end
    if faults:
        raise DamagedError("; ".join(faults))
    return spans


def _check_piece(path: Path, piece: Piece) -> list[str]:
    if path.is_symlink() or not path.is_file():
        return [f"the piece {piece['name']} is missing"]
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest == piece["sha256"]:
        return []
    reason = f"SHA-256 {digest}, its list says {piece['sha256']}"
    return [f"the piece {piece['name']} is damaged: {reason}"]


def _write_file(folder: Path, row: CutFile, spans: Sequence[Span]) -> None:
    path = folder / row["path"]
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("wb") as into:
        for start, end, name in spans:
            first, last = max(start, row["start"]), min(end, row["end"])
            if first < last:
                with (folder / name).open("rb") as stream:
                    stream.seek(first - start)
                    _copy(stream, into, last - first)
    fresh.replace(path)


def _copy(stream: BinaryIO, into: BinaryIO, count: int) -> None:
    while count and (block := stream.read(min(_BLOCK, count))):
        into.write(block)
        count -= len(block)


def _read_list(folder: Path) -> Cut:
    """Read the list of the pieces, which nobody signed. Raises DamagedError for another file."""
    with (folder / LIST).open("rb") as stream:
        content = stream.read(_MAX_LIST_BYTES)
    try:
        document = json.loads(content)
        pieces = [
            Piece(name=str(r["name"]), bytes=int(r["bytes"]), sha256=str(r["sha256"]))
            for r in document["pieces"]
        ]
        files = [
            CutFile(path=str(r["path"]), start=int(r["start"]), end=int(r["end"]))
            for r in document["files"]
        ]
    except (ValueError, KeyError, TypeError):
        pieces, plain = [], False
    else:
        plain = all(
            _NAME.fullmatch(row["name"]) and _SHA256.fullmatch(row["sha256"]) and row["bytes"] > 0
            for row in pieces
        )
    if not plain:
        message = f"{folder / LIST} is no list of pieces: carry it again"
        raise DamagedError(message)
    return Cut(files, pieces)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Join once, where several hosts of a run look at the same folder."""
    with (folder / LIST).open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def format_list(result: Cut) -> str:
    """Write the list that lies beside the pieces."""
    return json.dumps(result._asdict(), indent=1) + "\n"
