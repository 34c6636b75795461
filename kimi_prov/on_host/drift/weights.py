"""Compares the weights with their manifest: by `stat`, or by reading every byte.

The bytes are read from the disk itself: the page cache may hold what was read before, and differ.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import select
import stat
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from kimi_prov.contract import paths as layout
from kimi_prov.contract import unit_names
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.on_host.drift.difference import ABSENT, APPLY, Difference, Trace
from kimi_prov.on_host.system import units
from kimi_prov.on_host.system.files import read_json
from kimi_prov.on_host.system.progress import Progress
from kimi_prov.on_host.weights import manifest as manifests
from kimi_prov.on_host.weights import prepared, stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# From where the bytes of a folder were read.
DISK = "disk"
MEMORY = "memory"
CACHE = "page cache"
_NICE = 15
_WORKERS = 4
_LOOK_S = 1000


class Folder(NamedTuple):
    """A folder with weights, and the manifest by which they were verified."""

    path: str
    manifest: manifests.Manifest | None


def list_folders(applied: Mapping[str, Any]) -> list[Folder]:
    """List the folders whose weights are served, of the record's `weights`.

    The manifest beside them is trusted: its own digest is in the record.
    """
    names = [applied["dir"], applied.get("draft_dir")]
    found = [Folder(name, manifests.load(f"{name}/{manifests.NAME}")) for name in names if name]
    served = applied["serve_dir"]
    # After a boot the RAM disk is filled for a while, and its mark is written last.
    if served.startswith(f"{layout.RAM}/") and os.path.ismount(layout.RAM) and not _is_filling():
        found.append(Folder(served, found[0].manifest))
    return found


def _is_filling() -> bool:
    rows = units.read_states(unit_names.STAGE, unit_names.FETCH, unit_names.CONVERT)
    return any(row.get("state") == "activating" for row in rows.values())


def list_differences(
    applied: Mapping[str, Any], *, read: bool, told: dict[str, str] | None = None
) -> Iterator[Difference]:
    """Compare the weights with their manifests; `applied`: the record's `weights`.

    `read`: read their bytes too, which takes long; `told` gets each folder that was read, with
    DISK, MEMORY or CACHE.
    """
    told = {} if told is None else told
    path = f"{applied['dir']}/{manifests.NAME}"
    wanted, found = applied["manifest_sha256"], _hash_file(path)
    if wanted != found:
        observed = f"sha256 {found[:12]}" if found else ABSENT
        trace = Trace(path=path, gone=found is None)
        expected = f"sha256 {(wanted or '')[:12]}"
        yield Difference("drift.weights", path, expected, observed, trace=trace)
    for folder in list_folders(applied):
        if folder.manifest is not None:
            yield from _compare_folder(folder.path, folder.manifest, told, read=read)


def list_prepared_differences(folder: Path) -> Iterator[Difference]:
    """Compare a folder of prepared weights with what the role made and the engine wrote.

    The engine itself checks every byte of a file when it copies it.
    """
    try:
        about = folder.stat()
    except FileNotFoundError:
        yield Difference("drift.prepared", str(folder), "a folder", ABSENT, trace=Trace(gone=True))
        return
    expected = f"{layout.USER} {prepared.MODE:04o}"
    observed = f"{_find_user(about.st_uid)} {stat.S_IMODE(about.st_mode):04o}"
    if observed != expected:
        trace = Trace(path=str(folder))
        yield Difference("drift.prepared", str(folder), expected, observed, trace=trace)
    for row in prepared.list_files(folder):
        path = str(row.path)
        if row.aside:
            fix = "kimi-prov clean INVENTORY"
            state = "put aside: damaged, or of another layout"
            yield Difference("drift.prepared", path, "as written", state, fix, Trace(path=path))


def _find_user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _hash_file(path: str) -> str | None:
    try:
        with open(path, "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return None


def _compare_folder(
    root: str, manifest: manifests.Manifest, told: dict[str, str], *, read: bool
) -> Iterator[Difference]:
    records = manifests.parse_records(read_json(os.path.join(root, manifests.MARK)))
    whole = []
    for entry in manifest.files:
        path = os.path.join(root, entry.path)
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            trace = Trace(path=path, gone=True)
            yield Difference("drift.weights", path, format_bytes(entry.size), ABSENT, trace=trace)
            continue
        record = records.get(entry.path)
        if size != entry.size:
            expected, observed = f"{entry.size} bytes", f"{size} bytes"
            yield Difference("drift.weights", path, expected, observed, trace=Trace(path=path))
        elif read:
            whole.append(entry)
        elif record is None or not record.holds(path):
            yield Difference(
                "drift.weights",
                path,
                "untouched since it was verified",
                "touched since, and not read again (--weights)",
                trace=Trace(path=path),
            )
    if whole:
        reading = stage.Staging(root, None, Progress(None, "weights"), direct=True)
        reading.run(whole, _WORKERS)
        in_memory = root.startswith(f"{layout.RAM}/")
        told[root] = MEMORY if in_memory else CACHE if reading.cached else DISK
        wanted = {entry.path: entry.sha256 for entry in manifest.files}
        for name in sorted(reading.wrong):
            path = os.path.join(root, name)
            yield Difference(
                "drift.weights",
                path,
                f"sha256 {(wanted[name] or 'of the manifest')[:12]}",
                "other bytes",
                # A file that is touched is verified again, and fetched again where it is wrong.
                f"touch {path} && {APPLY}",
                Trace(path=path),
            )


def end_with_the_reader() -> None:
    """Yield the disk and the CPU to the engine, and end where no client waits for the answer."""
    os.nice(_NICE)
    poller = select.poll()
    poller.register(sys.stdout, 0)

    def watch() -> None:
        while not any(event & select.POLLERR for _, event in poller.poll(_LOOK_S)):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
