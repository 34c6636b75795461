"""`stage`: fill the RAM disk with verified weights, or read them into the page cache.

    stage [--config FILE]           copy and hash in one pass; without a target only read and hash
    stage [--config FILE] --check   only report whether the RAM disk holds the weights (exit 0, 1)

Runs as kimi-stage.service or kimi-warm.service, at every boot, before the engine. A file whose
bytes on the disk no longer match the manifest is fetched again, alone, and then staged.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import mmap
import os
import shutil
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.contract import paths, unit_names
from kimi_prov.contract.errors import EXIT_TRANSIENT, HostError
from kimi_prov.contract.sizes import format_bytes, format_file_count
from kimi_prov.on_host.system.files import read_json, remove, write_json
from kimi_prov.on_host.system.job import run_job
from kimi_prov.on_host.system.progress import Progress
from kimi_prov.on_host.weights import fetch
from kimi_prov.on_host.weights import manifest as manifests
from kimi_prov.on_host.weights.manifest import Entry, Manifest, Record

if TYPE_CHECKING:
    from collections.abc import Iterable

CONFIG = paths.STAGE
# Bytes; small enough to stay in a core's cache between the read, the hash and the write.
_CHUNK = 512 << 10
# Bytes of a read past the page cache, where nothing reads ahead.
_DIRECT_CHUNK = 4 << 20
_MARGIN_BYTES = 1 << 20


@dataclass(frozen=True)
class Config:
    """The plan's settings for staging, from /etc/kimi/stage.json."""

    weights: fetch.Config
    target: str | None
    mount: str | None
    workers: int
    progress: str | None

    @classmethod
    def load(cls, path: str) -> Config:
        """Read the file. Raises HostError naming the key that is wrong."""
        document = read_json(path)
        if not isinstance(document.get("weights"), str):
            raise HostError(
                f"{path}: is missing or names no weights", "run `kimi-prov apply` again"
            )
        target, mount = document.get("target"), document.get("mount")
        if target is not None and (mount is None or not target.startswith(mount + "/")):
            raise HostError(f"{path}: target {target!r} is not below mount {mount!r}")
        return cls(
            weights=fetch.Config.load(document["weights"]),
            target=target,
            mount=mount,
            workers=int(document.get("workers") or 1),
            progress=document.get("progress"),
        )


class Staging:
    """One pass over files, by several threads: read, hash and, with a target, write."""

    def __init__(
        self, source: str, target: str | None, progress: Progress, *, direct: bool = False
    ) -> None:
        """Read from `source`; `direct`: from the disk itself, whatever the page cache holds.

        Where the file system has no such reading (a RAM disk), the files' pages that no process has
        mapped are dropped first; `cached` has their paths.
        """
        self._source = source
        self._target = target
        self._progress = progress
        self._direct = direct
        self.cached: list[str] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.records: dict[str, Record] = {}
        self.wrong: list[str] = []

    def run(self, entries: Iterable[Entry], workers: int) -> None:
        """Read the entries; `records` has the good ones, `wrong` the paths of the others.

        Raises OSError where the machine cannot read or write.
        """
        self.wrong = []
        self._stop.clear()
        ordered = sorted(entries, key=lambda entry: -entry.size)
        with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
            futures = [pool.submit(self._one, entry) for entry in ordered]
            wait(futures, return_when=FIRST_EXCEPTION)
            self._stop.set()
        for future in futures:
            future.result()

    def _one(self, entry: Entry) -> None:
        self._progress.say(f"{entry.path} of {format_bytes(entry.size)}", log=False)
        source = os.path.join(self._source, entry.path)
        if self._target is None:
            matches, sha256 = self._pass(source, None, entry)
            record = Record(entry.size, 0, sha256)
        else:
            final = os.path.join(self._target, entry.path)
            os.makedirs(os.path.dirname(final), mode=0o755, exist_ok=True)
            matches, sha256 = self._pass(source, f"{final}.part", entry)
            if matches:
                os.replace(f"{final}.part", final)
                record = Record.from_file(final, sha256)
            else:
                remove(f"{final}.part")
        with self._lock:
            if matches:
                self.records[entry.path] = record
            else:
                self.wrong.append(entry.path)

    def _pass(self, source: str, target: str | None, entry: Entry) -> tuple[bool, str]:
        hasher = entry.hasher()
        # Aligned memory: reading past the page cache needs an aligned buffer.
        buffer = memoryview(mmap.mmap(-1, _DIRECT_CHUNK if self._direct else _CHUNK))
        done = 0
        output = -1
        reading = self._open_direct(source) if self._direct else os.open(source, os.O_RDONLY)
        try:
            if target is not None:
                output = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            while not self._stop.is_set():
                count = self._read(reading, buffer, source)
                if not count:
                    break
                hasher.update(buffer[:count])
                if output >= 0:
                    _write_all(output, buffer[:count])
                done += count
                self._progress.add(count)
            if output >= 0:
                os.fchmod(output, 0o644)
                # The engine reads the copy: the original's pages would only displace others.
                os.posix_fadvise(reading, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(reading)
            if output >= 0:
                os.close(output)
        matches = done == entry.size and hasher.matches()
        if not matches:
            self._progress.add(-done)
        return matches, hasher.sha256()

    def _open_direct(self, source: str) -> int:
        try:
            return os.open(source, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            descriptor = os.open(source, os.O_RDONLY)
            self._through_cache(descriptor, source)
            return descriptor

    def _through_cache(self, descriptor: int, source: str) -> None:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        with self._lock:
            self.cached.append(source)

    def _read(self, descriptor: int, buffer: memoryview, source: str) -> int:
        try:
            return os.readv(descriptor, [buffer])
        except OSError as error:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
                raise
            # Opened, but direct reads fail, or work only at positions that the last read has left.
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            self._through_cache(descriptor, source)
            return os.readv(descriptor, [buffer])


def _write_all(descriptor: int, view: memoryview) -> None:
    while view:
        view = view[os.write(descriptor, view) :]


def run(config: Config, progress: Progress) -> Manifest:
    """Stage (or warm) the verified weights; fetch corrupted files again. Raises HostError."""
    manifest = fetch.run(config.weights, Progress(config.weights.progress, "download"))
    progress.expect(manifest.total_bytes)
    source, target = config.weights.directory, config.target
    staging = Staging(source, target, progress)
    if target is not None:
        if is_staged(config, manifest):
            return manifest
        staging.records = _prepare(config, target, manifest)
    entries = [entry for entry in manifest.files if entry.path not in staging.records]
    progress.add(manifest.total_bytes - sum(e.size for e in entries), moved=False)
    progress.say(
        f"{format_file_count(len(entries))}, {format_bytes(sum(e.size for e in entries))} from "
        f"{source}"
    )
    staging.run(entries, config.workers)
    if staging.wrong:
        manifest = _fetch_again(config, staging, manifest, progress)
    if target is not None:
        write_json(os.path.join(target, manifests.NAME), manifest.to_json(), durable=False)
        manifests.write_mark(target, manifest, staging.records)
    return manifest


def _fetch_again(
    config: Config, staging: Staging, manifest: Manifest, progress: Progress
) -> Manifest:
    """Fetch the wrong files again, and only those; then read them from the disk once more."""
    wrong = sorted(staging.wrong)
    progress.say(
        f"{', '.join(wrong)} in {config.weights.directory}: the bytes on the disk are not the "
        "manifest's; fetching again"
    )
    with Progress(config.weights.progress, "download") as fetching:
        manifest = fetch.run(config.weights, fetching, distrust=wrong)
        fetching.done(f"{', '.join(wrong)}: repaired")
    staging.run([entry for entry in manifest.files if entry.path in wrong], config.workers)
    if staging.wrong:
        raise HostError(
            f"{staging.wrong[0]}: was verified and reads differently again: the disk or the memory "
            "of this machine is failing",
            "check the kernel's messages and the disk: journalctl -k; smartctl -a",
        )
    return manifest


def is_staged(config: Config, manifest: Manifest) -> bool:
    """Return whether the RAM disk is mounted and holds these files, untouched since."""
    if config.target is None or config.mount is None or not os.path.ismount(config.mount):
        return False
    return manifests.is_mark_valid(config.target, manifest)


def _prepare(config: Config, target: str, manifest: Manifest) -> dict[str, Record]:
    """Remove other files from the RAM disk; raise HostError where the weights would not fit."""
    mount = config.mount or target
    if not os.path.ismount(mount):
        raise HostError(
            f"{mount}: the RAM disk is not mounted, and staging would fill the disk below it",
            f"find out why: systemctl status {unit_names.RAM_MOUNT}",
        )
    known = manifests.parse_records(read_json(os.path.join(target, manifests.MARK)))
    remove(os.path.join(target, manifests.MARK))
    kept: dict[str, Record] = {}
    for entry in manifest.files:
        record = known.get(entry.path)
        path = os.path.join(target, entry.path)
        if record and record.sha256 == entry.sha256 and record.holds(path):
            kept[entry.path] = record
    _clear(mount, {os.path.join(target, path) for path in kept})
    needed = sum(e.size for e in manifest.files if e.path not in kept) + _MARGIN_BYTES
    free = shutil.disk_usage(mount).free
    if free < needed:
        raise HostError(
            f"{mount}: the RAM disk has {format_bytes(free)} free and the weights need "
            f"{format_bytes(needed)}",
            "run `kimi-prov apply` again so that it is sized for this model",
        )
    return kept


def _clear(mount: str, keep: set[str]) -> None:
    for folder, _, names in os.walk(mount, topdown=False):
        for name in names:
            path = os.path.join(folder, name)
            if path not in keep:
                remove(path)
        if folder != mount and not os.listdir(folder):
            os.rmdir(folder)


def main(argv: list[str]) -> int:
    """Entry point of the subcommand; see the module's docstring."""
    os.umask(0o022)
    parser = argparse.ArgumentParser(prog="stage")
    parser.add_argument("--config", default=CONFIG)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(argv)

    def work(config: Config, progress: Progress) -> int:
        if options.check:
            return _check(config)
        with progress:
            manifest = run(config, progress)
            where = config.target or f"{config.weights.directory} (page cache)"
            progress.done(
                f"{where}: {format_file_count(len(manifest.files))}, "
                f"{format_bytes(manifest.total_bytes)}, verified against manifest "
                f"{manifest.sha256[:12]}"
            )
        return 0

    return run_job(
        "stage",
        lambda: Config.load(options.config),
        lambda config: None if options.check else config.progress,
        work,
    )


def is_in_place(config: Config) -> bool:
    """Return whether the weights are verified, untouched and, with a target, on the RAM disk."""
    manifest = fetch.find_verified_manifest(config.weights)
    return manifest is not None and (config.target is None or is_staged(config, manifest))


def _check(config: Config) -> int:
    if is_in_place(config):
        print("staged")
        return 0
    print("not staged")
    return EXIT_TRANSIENT
