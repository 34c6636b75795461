"""Read logs as people keep them: files, folders, archives, packed or not, of any length.

Decides: what `diagnose` recognises (which files are logs).
Held by: tests/unit/operate/test_log_files.py.
"""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import os
import stat
import sys
import tarfile
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING

from kimi_prov.documents import STANDARD_INPUT
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Bytes that are taken of one line; what is longer is skipped to the line's end.
_MAX_LINE = 1 << 16
_MAX_FILES = 10_000
# What an archive may unpack to.
_MAX_UNPACKED = 64 << 30
_FIX = "name the output of journalctl, dmesg, docker logs or kubectl logs, saved as text"
# A binary file in a folder of logs is passed over.
_PROBE = 1024
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError)


def read_logs(
    paths: tuple[Path, ...], advance: Callable[[int], object]
) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield each log's name and its lines. `advance` is told of the bytes that were read.

    Raises UserError for a path that cannot be read, or that holds no text.
    """
    for path in paths:
        if path == STANDARD_INPUT:
            yield "-", _read_lines(sys.stdin.buffer, advance)
        elif path.is_dir():
            yield from _read_folder(path, advance)
        else:
            yield from _read_file(path, str(path), advance)


def count_bytes(paths: tuple[Path, ...]) -> int:
    """Return the size of the files, 0 where it is not known beforehand."""
    size = 0
    for path in paths:
        if path == STANDARD_INPUT or not path.exists():
            return 0
        files = _list_files(path) if path.is_dir() else [path]
        size += sum(file.stat().st_size for file in files)
    return size


def _read_folder(
    path: Path, advance: Callable[[int], object]
) -> Iterator[tuple[str, Iterator[bytes]]]:
    files = _list_files(path)
    if not files:
        raise UserError(f"{path}: no file is in this folder", fix=_FIX)
    for file in files:
        yield from _read_file(file, str(file), advance, in_folder=True)


def _list_files(path: Path) -> list[Path]:
    """Return the regular files of a folder and of its folders; links are not followed."""
    files: list[Path] = []
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            file = Path(folder) / name
            if file.is_file() and not file.is_symlink():
                files.append(file)
            if len(files) > _MAX_FILES:
                raise UserError(
                    f"{path}: more than {_MAX_FILES} files are in this folder",
                    fix="name the folder of the logs alone",
                )
    return files


def _read_file(
    path: Path, name: str, advance: Callable[[int], object], *, in_folder: bool = False
) -> Iterator[tuple[str, Iterator[bytes]]]:
    try:
        with _open_regular(path) as stream:
            head = stream.peek(_PROBE)[:_PROBE]
            if head.startswith(b"\x1f\x8b"):
                with gzip.open(stream) as unpacked:
                    yield from _read_packed(unpacked, name, advance)
            elif head.startswith(b"\xfd7zXZ"):
                with lzma.open(stream) as unpacked:
                    yield from _read_packed(unpacked, name, advance)
            elif head[257:262] == b"ustar":
                yield from _read_archive(stream, name, advance)
            elif b"\0" in head and not head.startswith(_UTF16):
                if not in_folder:
                    raise UserError(f"{name}: this file holds no text", fix=_FIX)
            else:
                yield name, _read_lines(stream, advance)
    except _BROKEN as error:
        reason = getattr(error, "strerror", None) or str(error) or "it is cut off"
        raise UserError(f"{name}: cannot be read: {reason}", fix=_FIX) from None


def _open_regular(path: Path) -> io.BufferedReader:
    """Open a file or a pipe. Raises UserError for what has no end or is not there."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}", fix=_FIX) from None
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise UserError(f"{path}: this is neither a file nor a folder nor a pipe", fix=_FIX)
    return path.open("rb")


def _read_packed(
    stream: gzip.GzipFile | lzma.LZMAFile, name: str, advance: Callable[[int], object]
) -> Iterator[tuple[str, Iterator[bytes]]]:
    buffered = io.BufferedReader(stream)
    if buffered.peek(_PROBE)[257:262] == b"ustar":
        yield from _read_archive(buffered, name, advance)
    else:
        yield name, _read_lines(buffered, advance)


def _read_archive(
    packed: IO[bytes], name: str, advance: Callable[[int], object]
) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Read an archive's files as they come; nothing is written to the disk."""
    size = 0
    with tarfile.open(fileobj=packed, mode="r|") as archive:
        for count, member in enumerate(archive):
            size += member.size
            if count > _MAX_FILES or size > _MAX_UNPACKED:
                raise UserError(f"{name}: this archive holds more than logs", fix=_FIX)
            stream = archive.extractfile(member) if member.isreg() else None
            if stream is not None and _is_log(member.name):
                yield f"{name}:{member.name}", _read_lines(stream, advance)


def _is_log(name: str) -> bool:
    """Whether a file of an archive has lines: of a bundle of ours its documents are left out."""
    return not name.endswith((".json", ".html", ".css", ".js", ".png"))


def _read_lines(stream: IO[bytes], advance: Callable[[int], object]) -> Iterator[bytes]:
    first = stream.readline(_MAX_LINE)
    if first.startswith(_UTF16):
        yield from _decode_utf16(first, stream)
        return
    first = first.removeprefix(b"\xef\xbb\xbf")
    line, complete, count = first, True, 0
    while line:
        if complete:
            yield line
        complete = line.endswith(b"\n")
        count += len(line)
        if count > _MAX_LINE << 4:
            advance(count)
            count = 0
        line = stream.readline(_MAX_LINE)
    advance(count)


def _decode_utf16(chunk: bytes, stream: IO[bytes]) -> Iterator[bytes]:
    """Read what PowerShell writes."""
    decoder, rest = codecs.getincrementaldecoder("utf-16")("replace"), ""
    while chunk:
        *lines, rest = (rest + decoder.decode(chunk)).split("\n")
        yield from (line.encode("utf-8", "replace") for line in lines)
        rest = rest[:_MAX_LINE]
        chunk = stream.read(_MAX_LINE)
    if rest:
        yield rest.encode("utf-8", "replace")
