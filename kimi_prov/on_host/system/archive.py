"""Archives that travel to another computer and back, where they are untrusted data.

A gzipped tar of regular files and, last, a manifest with every file's size and SHA-256: an
incomplete one has no manifest. It says nothing of the machine, its users or its clock.

Decides: what a backup holds, and where it is restored (the form of archives).
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import resource
import shutil
import stat
import tarfile
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Callable, cast

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system.files import sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MANIFEST = "manifest.json"
BAD = "take another backup, or another copy of this one"
MAX_DEPTH = 16
# Bytes that stay free on the disk of the restoring machine.
RESERVE_BYTES = 256 << 20
# Limits for an archive that somebody else may have made.
_MAX_FILES = 1_000_000
_MAX_MANIFEST_BYTES = 256 << 20
_MAX_MEMORY_BYTES = 4 << 30
_BLOCK = 1 << 20
_NAME = re.compile(r"[^/\0]{1,255}(?:/[^/\0]{1,255})*")

# Size and SHA-256.
Row = tuple[int, str]


def limit_memory() -> None:
    """Limit this process: the archive itself says how many bytes belong together."""
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))


def is_safe_name(name: str) -> bool:
    """Return whether an archive may hold a file of this name."""
    parts = name.split("/")
    plain = _NAME.fullmatch(name) and not {".", ".."} & set(parts)
    return bool(plain) and len(parts) <= MAX_DEPTH + 1


@contextlib.contextmanager
def open_archive(out: IO[bytes]) -> Iterator[tarfile.TarFile]:
    """Yield the archive that is written to `out`; `close` flushes it."""
    # Images do not get smaller, and text does at the first level.
    with (
        gzip.GzipFile(filename="", fileobj=out, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        yield archive


def add(archive: tarfile.TarFile, name: str, stream: IO[bytes]) -> Row:
    """Add a regular file that is open, as large as it is now."""
    counting = _Counting(stream)
    archive.addfile(_make_entry(name, os.fstat(stream.fileno()).st_size), counting)
    return counting.row


def add_text(archive: tarfile.TarFile, name: str, text: str) -> Row:
    """Add a text as a file."""
    data = text.encode()
    counting = _Counting(io.BytesIO(data))
    archive.addfile(_make_entry(name, len(data)), counting)
    return counting.row


def close(
    archive: tarfile.TarFile, schema: str, about: Mapping[str, Any], rows: Mapping[str, Row]
) -> None:
    """Write the manifest, which completes the archive."""
    manifest = {"schema": schema, **about, "files": rows}
    add_text(archive, MANIFEST, json.dumps(manifest, sort_keys=True))


def _make_entry(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info


class _Counting:
    """Reads on, and knows size and SHA-256 of what was read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.size = 0
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes."""
        block = self.stream.read(size)
        self.size += len(block)
        self.digest.update(block)
        return block

    @property
    def row(self) -> Row:
        """Return size and SHA-256."""
        return self.size, self.digest.hexdigest()


def unpack(
    source: IO[bytes], folder: Path, schema: str, known: Callable[[str], bool]
) -> tuple[list[str], dict[str, Any]]:
    """Write an archive's files below `folder`, for their owner alone; return names and manifest.

    `known`: whether an archive of this kind has a file of that name. Raises HostError for an
    incomplete archive, for anything but regular files of such names, and for a file that differs
    from the manifest; the caller removes what was written until then.
    """
    found, manifest = _unpack(source, folder, known)
    _check_manifest(found, manifest, schema)
    return sorted(found), manifest


def _unpack(
    source: IO[bytes], folder: Path, known: Callable[[str], bool]
) -> tuple[dict[str, Row], dict[str, Any]]:
    found: dict[str, Row] = {}
    manifest: dict[str, Any] | None = None
    room = shutil.disk_usage(folder).free - RESERVE_BYTES
    try:
        with (
            gzip.GzipFile(fileobj=source) as packed,
            tarfile.open(fileobj=packed, mode="r|") as archive,
        ):
            for count, info in enumerate(archive):
                room -= info.size
                _require_fits(count, info, room, known)
                # A regular file: it has content.
                stream = cast("IO[bytes]", archive.extractfile(info))
                if info.name == MANIFEST:
                    manifest = json.loads(stream.read())
                    break
                found[info.name] = _write(folder, info, stream)
            # Read to the end: the checksum there shows whether everything before is as it was
            # written.
            while packed.read(_BLOCK):
                pass
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise HostError(f"the archive is damaged, or not one of kimi-prov: {error}", BAD) from error
    except (MemoryError, RecursionError) as error:
        raise HostError("the archive is not a backup", BAD) from error
    if not isinstance(manifest, dict):
        raise HostError("the archive is incomplete: its manifest is missing", BAD)
    return found, manifest


def _require_fits(
    count: int, info: tarfile.TarInfo, room: int, known: Callable[[str], bool]
) -> None:
    """Raise HostError for a member that no backup has."""
    name = info.name
    if not info.isreg() or not is_safe_name(name) or not (name == MANIFEST or known(name)):
        raise HostError(f"the archive holds {name[:200]!r}, which no backup has", BAD)
    if count >= _MAX_FILES or (name == MANIFEST and info.size > _MAX_MANIFEST_BYTES):
        raise HostError("the archive holds more than a backup can", BAD)
    if room < 0:
        raise HostError(
            "there is no space on the disk for the archive's files",
            "free some space on the disk of /srv/kimi, then restore again",
        )


def _write(folder: Path, info: tarfile.TarInfo, stream: IO[bytes]) -> Row:
    path = folder / info.name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # If a name comes twice, the later one counts.
    path.unlink(missing_ok=True)
    counting = _Counting(stream)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(path, "wb", opener=lambda place, _: os.open(place, flags, 0o600)) as target:
        for block in iter(lambda: counting.read(_BLOCK), b""):
            target.write(block)
    return counting.row


def _check_manifest(found: dict[str, Row], manifest: dict[str, Any], schema: str) -> None:
    """Raise HostError unless an archive has what its manifest says."""
    if manifest.get("schema") != schema:
        said = str(manifest.get("schema"))[:80]
        raise HostError(
            f"the archive has the form {said}, and this version reads {schema}",
            "use the version of kimi-prov that made it",
        )
    files = manifest.get("files")
    wanted = files if isinstance(files, dict) else {}
    for name in sorted({*wanted, *found}):
        if name not in found or wanted.get(name) != list(found[name]):
            raise HostError(f"{name[:200]} is not as the archive's manifest says", BAD)


def list_names(folder: Path) -> list[str]:
    """Return regular files below a folder, by their path in it; links are left out."""
    found = []
    for top, _, listed in os.walk(folder):
        for name in listed:
            path = Path(top, name)
            if stat.S_ISREG(path.lstat().st_mode):
                found.append(str(path.relative_to(folder)))
    return sorted(found)


def sync_tree(folder: Path) -> None:
    """Flush everything below a folder to the disk, against a power cut."""
    for top, _, listed in os.walk(folder):
        for name in listed:
            descriptor = os.open(os.path.join(top, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(top)
