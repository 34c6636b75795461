"""What the page keeps: its database and uploads, copied while it runs and put back in one step.

This is run by the page's own user (`web-data`, started by `backup`): the page may write to its
folder, and root would follow a link that it finds there. An archive is a gzipped tar with
`webui.db`, `uploads/...` and, last, a manifest with every file's size and SHA-256: half of one has
no manifest. The database alone decides which uploads there are, and it is replaced by one rename
after they were put in place and before the others go. So a cut at any moment leaves the old
accounts and chats or the new ones, whole.
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
import sqlite3
import stat
import tarfile
import time
import zlib
from pathlib import Path
from typing import IO, Any, Callable, Dict, Iterator, List, Optional, Tuple, cast

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import sync_directory

SCHEMA = "kimi-prov/web-archive/v1"
DATABASE = "webui.db"
UPLOADS = "uploads"
MANIFEST = "manifest.json"
# Ours in the page's folder, gone at the end; what a killed one left goes with the next.
COPY = ".kimi-copy.db"
STAGE = ".kimi-restore"
NEW = f"{STAGE}/new"
OLD = f"{STAGE}/old"
# Uploads that came with the archive, and those that go when it is in use.
_CAME = "came"
_GO = "go.json"
_SIDES = ("-wal", "-shm", "-journal")
# What has to be there: else it is some other program's database.
_TABLES = {"user", "auth", "chat"}
_BLOCK = 1 << 20
# The page itself writes a row within milliseconds.
_PATIENCE_S = 60.0
# Bounds on an archive that somebody else may have made.
FILES_AT_MOST = 1_000_000
_MANIFEST_AT_MOST = 256 << 20
_MEMORY_AT_MOST = 4 << 30
_DEPTH_AT_MOST = 16
# Left on the disk of whoever restores.
RESERVE_BYTES = 256 << 20
_NAME = re.compile(r"[^/\0]{1,255}(?:/[^/\0]{1,255})*")
_BAD_ARCHIVE = "take another backup, or another copy of this one"

Row = Tuple[int, str]
# Size, time of writing and inode: whether a file is still the one that was read.
_State = Tuple[int, int, int]


def copy_database(data: Path, out: IO[bytes]) -> bool:
    """Write a consistent copy of the database to `out` while the page runs; False without one."""
    with _copied(data) as copy:
        if copy is None:
            return False
        with copy.open("rb") as stream:
            shutil.copyfileobj(stream, out, _BLOCK)
    return True


def take_database(data: Path, source: IO[bytes]) -> None:
    """Put a copy in the place of the database, in one step; the page must not run."""
    _sweep(data)
    copy = data / COPY
    try:
        with copy.open("xb") as stream:
            shutil.copyfileobj(source, stream, _BLOCK)
            stream.flush()
            os.fsync(stream.fileno())
        _require_whole(copy)
        _settle_database(data)
        copy.replace(data / DATABASE)
        sync_directory(str(data))
    finally:
        copy.unlink(missing_ok=True)


def save(data: Path, out: IO[bytes], version: str) -> Dict[str, Any]:
    """Write an archive of database and uploads to `out`; return what it holds.

    Uploads are read before and after the database is copied: whatever it names is there, also when
    it came or went meanwhile.
    """
    rows: Dict[str, Row] = {}
    seen: Dict[str, _State] = {}
    left_out: List[str] = []
    with _packing(out) as archive:
        _add_uploads(archive, data, rows, seen, left_out)
        with _copied(data) as copy:
            if copy is None:
                raise HostError(
                    f"{data / DATABASE}: the page has kept nothing yet", "let it start once"
                )
            counted = _counted(copy)
            rows[DATABASE], _ = _add(archive, DATABASE, copy)
        _add_uploads(archive, data, rows, seen, left_out)
        about = {"version": version, "made_unix": int(time.time()), **counted}
        manifest = {"schema": SCHEMA, **about, "files": rows}
        text = json.dumps(manifest, sort_keys=True).encode()
        archive.addfile(_entry(MANIFEST, len(text)), io.BytesIO(text))
    return {**about, "uploads": len(rows) - 1, "left_out": sorted(set(left_out))}


def stage(data: Path, source: IO[bytes]) -> Dict[str, Any]:
    """Unpack an archive beside what is there and hold it against its manifest; return its facts.

    Nothing of what the page uses is touched. Raises HostError for what is no whole archive of ours.
    """
    _sweep(data)
    folder = data / NEW
    folder.mkdir(mode=0o700, parents=True)
    (data / OLD).mkdir(mode=0o700)
    try:
        found, manifest = _unpack(source, folder)
        _hold(found, manifest)
        _require_whole(folder / DATABASE)
        counted = _counted(folder / DATABASE)
        _end_wal(folder / DATABASE)
        _sync_tree(folder)
    except BaseException:
        _sweep(data)
        raise
    told = {name: manifest.get(name) for name in ("version", "made_unix")}
    return {**told, **counted, "uploads": len(found) - 1}


def switch(data: Path) -> None:
    """Put the staged files in place; the page must not run. The database is last, and one step."""
    new, old = data / NEW, data / OLD
    if not (new / DATABASE).is_file():
        raise HostError("there is nothing staged to put in place", "restore again")
    uploads = data / UPLOADS
    uploads.mkdir(mode=0o700, exist_ok=True)
    coming = _names(new / UPLOADS)
    (old / _GO).write_text(json.dumps(sorted(set(_names(uploads)) - set(coming))))
    for name in coming:
        at = uploads / name
        at.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.path.lexists(at):
            kept = old / UPLOADS / name
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.link(at, kept, follow_symlinks=False)
        else:
            # So that going back knows what came.
            came = old / _CAME / name
            came.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            came.touch(mode=0o600)
        (new / UPLOADS / name).replace(at)
    for folder, _, _ in os.walk(uploads):
        sync_directory(folder)
    _settle_database(data)
    if (data / DATABASE).exists():
        os.link(data / DATABASE, old / DATABASE)
    (new / DATABASE).replace(data / DATABASE)
    sync_directory(str(data))


def go_back(data: Path) -> None:
    """Undo `switch`, where it was done or begun; the page must not run."""
    old = data / OLD
    switched = (data / NEW).is_dir() and not (data / NEW / DATABASE).is_file()
    for name in _names(old / UPLOADS):
        (old / UPLOADS / name).replace(data / UPLOADS / name)
    if switched:
        _settle_database(data)
        if (old / DATABASE).is_file():
            (old / DATABASE).replace(data / DATABASE)
        else:
            # There was none before.
            (data / DATABASE).unlink(missing_ok=True)
    for name in _names(old / _CAME):
        (data / UPLOADS / name).unlink(missing_ok=True)
    sync_directory(str(data))
    _sweep(data)


def finish(data: Path) -> None:
    """Remove what was there before `switch` and is of no account any more."""
    for name in json.loads((data / OLD / _GO).read_text()):
        (data / UPLOADS / name).unlink(missing_ok=True)
    _sweep(data)


def _sweep(data: Path) -> None:
    """Remove what is ours in the folder: its maker has ended, for only one at a time is let in."""
    shutil.rmtree(data / STAGE, ignore_errors=True)
    for side in ("", *_SIDES):
        (data / (COPY + side)).unlink(missing_ok=True)


@contextlib.contextmanager
def _copied(data: Path) -> Iterator[Optional[Path]]:
    """Give a copy of the database in one file, from one moment; None where there is none."""
    _sweep(data)
    if not (data / DATABASE).is_file():
        yield None
        return
    copy = data / COPY
    try:
        with _open(data / DATABASE) as source, _open(copy, "rwc") as target:
            # All at once: one read transaction, which keeps no writer waiting.
            source.backup(target, pages=-1)
        _end_wal(copy)
        yield copy
    finally:
        _sweep(data)


@contextlib.contextmanager
def _open(database: Path, mode: str = "rw") -> Iterator[sqlite3.Connection]:
    place = f"{database.absolute().as_uri()}?mode={mode}"
    with contextlib.closing(sqlite3.connect(place, uri=True, timeout=_PATIENCE_S)) as connection:
        yield connection


def _end_wal(database: Path) -> None:
    """Bring everything into the one file, and leave none beside it."""
    with _open(database) as connection:
        found = connection.execute("pragma journal_mode=delete").fetchone()
        if found != ("delete",):
            raise sqlite3.OperationalError("database is locked")


def _settle_database(data: Path) -> None:
    """Bring the present database into one file, so that one rename replaces it.

    Raises HostError while it is in use.
    """
    database = data / DATABASE
    if database.is_file():
        try:
            _end_wal(database)
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise HostError(
                    f"{database} is in use", "stop what else has it open", retryable=True
                ) from error
    for side in _SIDES:
        (data / (DATABASE + side)).unlink(missing_ok=True)


def _require_whole(database: Path) -> None:
    """Raise HostError unless this is a database of the page, and no page of it is broken."""
    try:
        with _open(database) as connection:
            found = connection.execute("pragma integrity_check(1)").fetchone()
            rows = connection.execute("select name from sqlite_master where type = 'table'")
            tables = {row[0] for row in rows}
    except sqlite3.Error as error:
        raise HostError(f"its {DATABASE} cannot be read: {error}", _BAD_ARCHIVE) from error
    if found != ("ok",):
        raise HostError(f"its {DATABASE} is broken: {found[0]}", _BAD_ARCHIVE)
    if not tables >= _TABLES:
        lacks = ", ".join(sorted(_TABLES - tables))
        raise HostError(f"its {DATABASE} is not the page's: it has no {lacks}", _BAD_ARCHIVE)


def _counted(database: Path) -> Dict[str, int]:
    with _open(database) as connection:
        return {
            name: int(connection.execute(f'select count(*) from "{table}"').fetchone()[0])  # noqa: S608
            for name, table in (("accounts", "user"), ("chats", "chat"))
        }


def _names(folder: Path) -> List[str]:
    """Regular files below a folder, by their path in it; links are none."""
    found = []
    for top, _, names in os.walk(folder):
        for name in names:
            path = Path(top, name)
            if stat.S_ISREG(path.lstat().st_mode):
                found.append(str(path.relative_to(folder)))
    return sorted(found)


def _add_uploads(
    archive: tarfile.TarFile,
    data: Path,
    rows: Dict[str, Row],
    seen: Dict[str, _State],
    left_out: List[str],
) -> None:
    """Add the uploads that are not in the archive as they are now; a later one counts."""
    for name in _names(data / UPLOADS):
        path, entry = data / UPLOADS / name, f"{UPLOADS}/{name}"
        with contextlib.suppress(FileNotFoundError):
            if seen.get(name) == _state(path.lstat()):
                continue
            if not _NAME.fullmatch(entry) or entry.count("/") > _DEPTH_AT_MOST:
                left_out.append(name)
                continue
            rows[entry], seen[name] = _add(archive, entry, path)


@contextlib.contextmanager
def _packing(out: IO[bytes]) -> Iterator[tarfile.TarFile]:
    # Pictures do not get smaller, and text does at the first level.
    with (
        gzip.GzipFile(filename="", fileobj=out, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        yield archive


def _state(about: os.stat_result) -> _State:
    return about.st_size, about.st_mtime_ns, about.st_ino


def _add(archive: tarfile.TarFile, name: str, path: Path) -> Tuple[Row, _State]:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(path, "rb", opener=lambda place, _: os.open(place, flags)) as stream:
        about = os.fstat(stream.fileno())
        counting = _Counting(stream)
        archive.addfile(_entry(name, about.st_size), counting)
    return (counting.size, counting.digest.hexdigest()), _state(about)


def _entry(name: str, size: int) -> tarfile.TarInfo:
    """Describe a file of the archive: nothing of this machine, its users or clock is in it."""
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


def _unpack(source: IO[bytes], folder: Path) -> Tuple[Dict[str, Row], Dict[str, Any]]:
    """Write the files of an archive below `folder`; return what was read, and the manifest."""
    found: Dict[str, Row] = {}
    manifest: Optional[Dict[str, Any]] = None
    room = shutil.disk_usage(folder).free - RESERVE_BYTES
    try:
        with (
            gzip.GzipFile(fileobj=source) as packed,
            tarfile.open(fileobj=packed, mode="r|") as archive,
        ):
            for count, info in enumerate(archive):
                room -= info.size
                _require_fits(count, info, room)
                # A regular file: it has content.
                stream = cast("IO[bytes]", archive.extractfile(info))
                if info.name == MANIFEST:
                    manifest = json.loads(stream.read())
                    break
                found[info.name] = _write(folder, info, stream)
            # The end too: its checksum tells whether all before it is as it was written.
            while packed.read(_BLOCK):
                pass
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise HostError(
            f"the archive is damaged, or none of kimi-prov: {error}", _BAD_ARCHIVE
        ) from error
    except (MemoryError, RecursionError) as error:
        raise HostError("the archive is no backup of a page", _BAD_ARCHIVE) from error
    if not isinstance(manifest, dict):
        raise HostError("the archive is not whole: its manifest is missing", _BAD_ARCHIVE)
    return found, manifest


def _require_fits(count: int, info: tarfile.TarInfo, room: int) -> None:
    """Raise HostError for a member that no backup has."""
    name = info.name
    parts = name.split("/")
    known = name in (DATABASE, MANIFEST) or (len(parts) > 1 and parts[0] == UPLOADS)
    if (
        not info.isreg()
        or not known
        or not _NAME.fullmatch(name)
        or len(parts) > _DEPTH_AT_MOST + 1
        or {".", ".."} & set(parts)
    ):
        raise HostError(f"the archive holds {name[:200]!r}, which no backup has", _BAD_ARCHIVE)
    if count >= FILES_AT_MOST or (name == MANIFEST and info.size > _MANIFEST_AT_MOST):
        raise HostError("the archive holds more than a backup can", _BAD_ARCHIVE)
    if room < 0:
        raise HostError(
            "there is no room on the disk for what is in the archive",
            "free some room in the page's folder, then restore again",
        )


def _write(folder: Path, info: tarfile.TarInfo, stream: IO[bytes]) -> Row:
    path = folder / info.name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Of a name that comes twice the later one counts.
    path.unlink(missing_ok=True)
    counting = _Counting(stream)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(path, "wb", opener=lambda place, _: os.open(place, flags, 0o600)) as target:
        for block in iter(lambda: counting.read(_BLOCK), b""):
            target.write(block)
    return counting.size, counting.digest.hexdigest()


def _hold(found: Dict[str, Row], manifest: Dict[str, Any]) -> None:
    """Raise HostError unless an archive has what its manifest says."""
    if manifest.get("schema") != SCHEMA:
        said = str(manifest.get("schema"))[:80]
        raise HostError(
            f"the archive is of the form {said}, and this version reads {SCHEMA}",
            "use the version of kimi-prov that made it",
        )
    files = manifest.get("files")
    wanted = files if isinstance(files, dict) else {}
    for name in sorted({*wanted, *found}):
        if name not in found or wanted.get(name) != list(found[name]):
            raise HostError(f"{name[:200]} is not as the archive's manifest says", _BAD_ARCHIVE)
    if DATABASE not in found:
        raise HostError(f"the archive has no {DATABASE}", _BAD_ARCHIVE)


def _sync_tree(folder: Path) -> None:
    for top, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(os.path.join(top, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(top)


def _with_output(work: Callable[[IO[bytes]], Dict[str, Any]], descriptor: int) -> Dict[str, Any]:
    """Have the archive or copy written to a descriptor that the caller opened."""
    with os.fdopen(descriptor, "wb") as out:
        told = work(out)
        out.flush()
        os.fsync(out.fileno())
    return told


def act(action: str, data: Path, version: str, descriptor: int) -> Dict[str, Any]:
    """Do one thing in the page's folder; `descriptor` is the file that is written or read."""
    if action == "save":
        return _with_output(lambda out: save(data, out, version), descriptor)
    if action == "copy":
        return _with_output(lambda out: {"there": copy_database(data, out)}, descriptor)
    if action in ("take", "stage"):
        with os.fdopen(descriptor, "rb") as source:
            if action == "stage":
                return stage(data, source)
            take_database(data, source)
            return {}
    steps = {"switch": switch, "go-back": go_back, "finish": finish}
    if action not in steps:
        raise HostError("usage: web-data save|copy|take|stage|switch|go-back|finish FOLDER ...")
    steps[action](data)
    return {}


def main(argv: List[str]) -> int:
    """`web-data ACTION FOLDER VERSION DESCRIPTOR`, as the page's user; prints JSON."""
    action, folder, version, descriptor = argv
    # An archive of somebody else's making says itself how much of it belongs together.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_AT_MOST, _MEMORY_AT_MOST))
    os.umask(0o077)
    try:
        return answer({"ok": True, **act(action, Path(folder), version, int(descriptor))})
    except sqlite3.Error as error:
        raise HostError(f"{folder}/{DATABASE}: {error}") from error
