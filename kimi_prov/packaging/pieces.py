"""Files cut into pieces for carriers and file systems that hold no more, and joined again.

The files lie one behind the other in one stream; a piece is a part of it. Whoever carries them
compares each piece with its SHA-256, and each joined file with the index that names it. Nobody
signed the list of the pieces: only what the signed index confirms is put in place.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from kimi_prov.contract.documents.bundle import BundledFile

LIST = "pieces.json"
_BLOCK = 1 << 20
_MAX_LIST_BYTES = 64 << 20
_NAME = re.compile(r"[a-z0-9-]{1,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_OWN_NAME = re.compile(r"piece-[0-9]{4,}")
# A leftover is removed before: what is opened is a new file, and no link is followed.
_FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


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


def name_piece(index: int) -> str:
    """Return the name of the piece with this number, from zero."""
    return f"piece-{index:04}"


def is_piece(name: str) -> bool:
    """Whether a name is a piece's: those that an earlier, larger bundle left are not read."""
    return _OWN_NAME.fullmatch(name) is not None


def find_link(folder: Path, path: str) -> str | None:
    """Return the first part of a path below the folder that is a link, None where none is."""
    parts = [PurePosixPath(path), *PurePosixPath(path).parents]
    return next((str(part) for part in reversed(parts) if (folder / part).is_symlink()), None)


def read_names(folder: Path) -> set[str]:
    """Return the names of the pieces in a folder, and of their list; none where there is none."""
    if not (folder / LIST).is_file():
        return set()
    return {LIST, *(piece["name"] for piece in _read_list(folder).pieces)}


def join(folder: Path, files: Iterable[BundledFile], compare: Collection[str] = ()) -> None:
    """Write those of these files that are not there yet from the pieces beside them.

    Others are not written, whatever the list of the pieces says. One of `compare` that is damaged
    is written again; of the others the size is compared alone. Raises DamagedError.
    """
    to_join = {file["path"]: file for file in files}
    if not (folder / LIST).is_file():
        return
    with _lock(folder):
        found = _read_list(folder)
        lacking = [
            row
            for row in found.files
            if row["path"] in to_join and not _is_there(folder, to_join[row["path"]], compare)
        ]
        if not lacking:
            return
        _refuse_links(folder, lacking)
        spans = _check_pieces(folder, found.pieces, lacking)
        needed, free = sum(_size(row) for row in lacking), shutil.disk_usage(folder).free
        if needed > free:
            message = f"{folder}: {needed} bytes are needed to join the pieces, {free} are free"
            raise DamagedError(message)
        for row in lacking:
            _write_file(folder, row, to_join[row["path"]]["sha256"], spans)


def _is_there(folder: Path, file: BundledFile, compare: Collection[str]) -> bool:
    path = folder / file["path"]
    if find_link(folder, file["path"]) or not path.is_file():
        return False
    if path.stat().st_size != file["bytes"]:
        return False
    return file["path"] not in compare or _compute_sha256(path) == file["sha256"]


def _compute_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _refuse_links(folder: Path, rows: Sequence[CutFile]) -> None:
    """Refuse to write where a link leads elsewhere, before anything is written."""
    links = {row["path"]: find_link(folder, row["path"]) for row in rows}
    faults = [f"{path}: {link} is a link" for path, link in links.items() if link]
    if faults:
        raise DamagedError("; ".join(faults))


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
    digest = _compute_sha256(path)
    if digest == piece["sha256"]:
        return []
    reason = f"SHA-256 {digest}, its list says {piece['sha256']}"
    return [f"the piece {piece['name']} is damaged: {reason}"]


def _write_file(folder: Path, row: CutFile, sha256: str, spans: Sequence[Span]) -> None:
    """Write a file beside its place, and put it there when it is what the index says."""
    path = folder / row["path"]
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(fresh, _FRESH, 0o666), "wb") as into:
            digest = _copy_parts(folder, row, spans, into)
            into.flush()
            os.fsync(into.fileno())
        _require_same(row["path"], digest, sha256)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _require_same(path: str, digest: str, sha256: str) -> None:
    if digest != sha256:
        message = f"{path}: the pieces give SHA-256 {digest}, the index says {sha256}"
        raise DamagedError(message)


def _copy_parts(folder: Path, row: CutFile, spans: Sequence[Span], into: BinaryIO) -> str:
    """Write a file's parts of the pieces one behind the other; return the SHA-256 of all."""
    digest = hashlib.sha256()
    for start, end, name in spans:
        first, last = max(start, row["start"]), min(end, row["end"])
        if first >= last:
            continue
        with (folder / name).open("rb") as stream:
            stream.seek(first - start)
            count = last - first
            while count and (block := stream.read(min(_BLOCK, count))):
                into.write(block)
                digest.update(block)
                count -= len(block)
    return digest.hexdigest()


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
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        files, pieces, plain = [], [], False
    else:
        plain = _is_plain(files, pieces)
    if not plain:
        message = f"{folder / LIST} is no list of pieces: carry it again"
        raise DamagedError(message)
    return Cut(files, pieces)


def _is_plain(files: Sequence[CutFile], pieces: Sequence[Piece]) -> bool:
    """Whether the pieces' names stay in their folder, and the files in the bytes of the pieces."""
    total = sum(row["bytes"] for row in pieces)
    return all(
        _NAME.fullmatch(row["name"]) and _SHA256.fullmatch(row["sha256"]) and row["bytes"] > 0
        for row in pieces
    ) and all(0 <= row["start"] <= row["end"] <= total for row in files)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Join once, where several hosts of a run look at the same folder."""
    with (folder / LIST).open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def format_list(result: Cut) -> str:
    """Write the list that lies beside the pieces."""
    return json.dumps(result._asdict(), indent=1) + "\n"
