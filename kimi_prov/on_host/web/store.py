"""The web UI's data: database and uploads, copied while it runs and restored in one step.

The web UI's own user runs this (`web-data`, started by `backup`): the web UI may write to its
folder, and root would follow a link in it. An archive (`system.archive`) has `webui.db` and
`uploads/...`. The database alone decides which uploads exist, and one rename replaces it: after the
new uploads were put in place, and before the old ones are removed. So an interruption at any moment
leaves either the old accounts and chats or the new ones, complete.

Decides: what of the web UI is backed up, and how it is restored.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Callable

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system import archive as archives
from kimi_prov.on_host.system.archive import Row, list_names
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import sync_directory

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterator

SCHEMA = "kimi-prov/web-archive/v1"
DATABASE = "webui.db"
UPLOADS = "uploads"
# Our own folders in the web UI's folder, removed at the end; the next run removes those of a killed
# one.
COPY = ".kimi-copy.db"
STAGE = ".kimi-restore"
NEW = f"{STAGE}/new"
OLD = f"{STAGE}/old"
# Uploads that came with the archive, and those that are removed when it is in use.
_CAME = "came"
_GO = "go.json"
_SIDES = ("-wal", "-shm", "-journal")
# Tables that must exist: else it is another program's database.
_TABLES = {"user", "auth", "chat"}
_BLOCK = 1 << 20
# Seconds to wait for a lock: the web UI itself writes a row within milliseconds.
_TIMEOUT_S = 60.0
# Size, time of writing and inode: whether a file is still the one that was read.
_State = tuple[int, int, int]


def copy_database(data: Path, out: IO[bytes]) -> bool:
    """Write a consistent copy of the database to `out` while the web UI runs; False without one."""
    with _make_copy(data) as copy:
        if copy is None:
            return False
        with copy.open("rb") as stream:
            shutil.copyfileobj(stream, out, _BLOCK)
    return True


def replace_database(data: Path, source: IO[bytes]) -> None:
    """Replace the database by a copy, in one step; the web UI must not run."""
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


def save(data: Path, out: IO[bytes], version: str) -> dict[str, Any]:
    """Write an archive of database and uploads to `out`; return its contents.

    Uploads are read before and after the database is copied: every upload that the database names
    is in the archive, also when it came or went meanwhile.
    """
    rows: dict[str, Row] = {}
    seen: dict[str, _State] = {}
    left_out: list[str] = []
    with archives.open_archive(out) as archive:
        _add_uploads(archive, data, rows, seen, left_out)
        with _make_copy(data) as copy:
            if copy is None:
                raise HostError(
                    f"{data / DATABASE}: the web UI has stored nothing yet", "let it start once"
                )
            counted = _count_rows(copy)
            rows[DATABASE], _ = _add(archive, DATABASE, copy)
        _add_uploads(archive, data, rows, seen, left_out)
        about = {"version": version, "made_unix": int(time.time()), **counted}
        archives.close(archive, SCHEMA, about, rows)
    return {**about, "uploads": len(rows) - 1, "left_out": sorted(set(left_out))}


def stage(data: Path, source: IO[bytes]) -> dict[str, Any]:
    """Unpack an archive beside the data and check it against its manifest; return its facts.

    Nothing that the web UI uses is touched. Raises HostError for anything but a complete archive of
    ours.
    """
    _sweep(data)
    folder = data / NEW
    folder.mkdir(mode=0o700, parents=True)
    (data / OLD).mkdir(mode=0o700)
    try:
        found, manifest = archives.unpack(source, folder, SCHEMA, _is_known)
        _require_whole(folder / DATABASE)
        counted = _count_rows(folder / DATABASE)
        _end_wal(folder / DATABASE)
        archives.sync_tree(folder)
    except BaseException:
        _sweep(data)
        raise
    told = {name: manifest.get(name) for name in ("version", "made_unix")}
    return {**told, **counted, "uploads": len(found) - 1}


def switch(data: Path) -> None:
    """Put the staged files in place; the web UI must not run. The database is last, in one step."""
    new, old = data / NEW, data / OLD
    if not (new / DATABASE).is_file():
        raise HostError("there is nothing staged to put in place", "restore again")
    uploads = data / UPLOADS
    uploads.mkdir(mode=0o700, exist_ok=True)
    coming = list_names(new / UPLOADS)
    (old / _GO).write_text(json.dumps(sorted(set(list_names(uploads)) - set(coming))))
    for name in coming:
        at = uploads / name
        at.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.path.lexists(at):
            kept = old / UPLOADS / name
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.link(at, kept, follow_symlinks=False)
        else:
            # So that a rollback knows which uploads came.
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
    """Undo `switch`, where it was done or begun; the web UI must not run."""
    old = data / OLD
    switched = (data / NEW).is_dir() and not (data / NEW / DATABASE).is_file()
    for name in list_names(old / UPLOADS):
        (old / UPLOADS / name).replace(data / UPLOADS / name)
    if switched:
        _settle_database(data)
        if (old / DATABASE).is_file():
            (old / DATABASE).replace(data / DATABASE)
        else:
            # There was none before.
            (data / DATABASE).unlink(missing_ok=True)
    for name in list_names(old / _CAME):
        (data / UPLOADS / name).unlink(missing_ok=True)
    sync_directory(str(data))
    _sweep(data)


def finish(data: Path) -> None:
    """Remove the data from before `switch`."""
    for name in json.loads((data / OLD / _GO).read_text()):
        (data / UPLOADS / name).unlink(missing_ok=True)
    _sweep(data)


def _sweep(data: Path) -> None:
    """Remove our own folders: the run that made them has ended, because only one runs at a time."""
    shutil.rmtree(data / STAGE, ignore_errors=True)
    for side in ("", *_SIDES):
        (data / (COPY + side)).unlink(missing_ok=True)


@contextlib.contextmanager
def _make_copy(data: Path) -> Iterator[Path | None]:
    """Return a copy of the database in one file, from one moment; None where there is none."""
    _sweep(data)
    if not (data / DATABASE).is_file():
        yield None
        return
    copy = data / COPY
    try:
        with _open(data / DATABASE) as source, _open(copy, "rwc") as target:
            # All at once: one read transaction, which blocks no writer.
            source.backup(target, pages=-1)
        _end_wal(copy)
        yield copy
    finally:
        _sweep(data)


@contextlib.contextmanager
def _open(database: Path, mode: str = "rw") -> Iterator[sqlite3.Connection]:
    place = f"{database.absolute().as_uri()}?mode={mode}"
    with contextlib.closing(sqlite3.connect(place, uri=True, timeout=_TIMEOUT_S)) as connection:
        yield connection


def _end_wal(database: Path) -> None:
    """Merge the write-ahead log into the one file, and leave no file beside it."""
    with _open(database) as connection:
        found = connection.execute("pragma journal_mode=delete").fetchone()
        if found != ("delete",):
            raise sqlite3.OperationalError("database is locked")


def _settle_database(data: Path) -> None:
    """Merge the present database into one file, so that one rename replaces it.

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
    """Raise HostError unless this is a database of the web UI, and none of its pages is broken."""
    if not database.is_file():
        raise HostError(f"the archive has no {DATABASE}", archives.BAD)
    try:
        with _open(database) as connection:
            found = connection.execute("pragma integrity_check(1)").fetchone()
            rows = connection.execute("select name from sqlite_master where type = 'table'")
            tables = {row[0] for row in rows}
    except sqlite3.Error as error:
        raise HostError(f"its {DATABASE} cannot be read: {error}", archives.BAD) from error
    if found != ("ok",):
        raise HostError(f"its {DATABASE} is broken: {found[0]}", archives.BAD)
    if not tables >= _TABLES:
        lacks = ", ".join(sorted(_TABLES - tables))
        raise HostError(f"its {DATABASE} is not the web UI's: it has no {lacks}", archives.BAD)


def _count_rows(database: Path) -> dict[str, int]:
    with _open(database) as connection:
        return {
            name: int(connection.execute(f'select count(*) from "{table}"').fetchone()[0])  # noqa: S608
            for name, table in (("accounts", "user"), ("chats", "chat"))
        }


def _add_uploads(
    archive: tarfile.TarFile,
    data: Path,
    rows: dict[str, Row],
    seen: dict[str, _State],
    left_out: list[str],
) -> None:
    """Add the uploads that are new or changed; a later form of an upload replaces the earlier."""
    for name in list_names(data / UPLOADS):
        path, entry = data / UPLOADS / name, f"{UPLOADS}/{name}"
        with contextlib.suppress(FileNotFoundError):
            if seen.get(name) == _build_state(path.lstat()):
                continue
            if not archives.is_safe_name(entry):
                left_out.append(name)
                continue
            rows[entry], seen[name] = _add(archive, entry, path)


def _build_state(about: os.stat_result) -> _State:
    return about.st_size, about.st_mtime_ns, about.st_ino


def _add(archive: tarfile.TarFile, name: str, path: Path) -> tuple[Row, _State]:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(path, "rb", opener=lambda place, _: os.open(place, flags)) as stream:
        about = os.fstat(stream.fileno())
        return archives.add(archive, name, stream), _build_state(about)


def _is_known(name: str) -> bool:
    return name == DATABASE or name.startswith(f"{UPLOADS}/")


def _write_to(work: Callable[[IO[bytes]], dict[str, Any]], descriptor: int) -> dict[str, Any]:
    """Have the archive or copy written to a descriptor that the caller opened."""
    with os.fdopen(descriptor, "wb") as out:
        told = work(out)
        out.flush()
        os.fsync(out.fileno())
    return told


def act(action: str, data: Path, version: str, descriptor: int) -> dict[str, Any]:
    """Run one action in the web UI's folder; `descriptor` is the file that is written or read."""
    if action == "save":
        return _write_to(lambda out: save(data, out, version), descriptor)
    if action == "copy":
        return _write_to(lambda out: {"there": copy_database(data, out)}, descriptor)
    if action in ("take", "stage"):
        with os.fdopen(descriptor, "rb") as source:
            if action == "stage":
                return stage(data, source)
            replace_database(data, source)
            return {}
    steps = {"switch": switch, "go-back": go_back, "finish": finish}
    if action not in steps:
        raise HostError("usage: web-data save|copy|take|stage|switch|go-back|finish FOLDER ...")
    steps[action](data)
    return {}


def main(argv: list[str]) -> int:
    """`web-data ACTION FOLDER VERSION DESCRIPTOR`, as the web UI's user; prints JSON."""
    action, folder, version, descriptor = argv
    archives.limit_memory()
    os.umask(0o077)
    try:
        return answer({"ok": True, **act(action, Path(folder), version, int(descriptor))})
    except sqlite3.Error as error:
        raise HostError(f"{folder}/{DATABASE}: {error}") from error
