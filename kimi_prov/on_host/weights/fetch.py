"""`fetch`: download the weights of the plan to this machine and verify them.

    fetch [--config FILE]             do it; returns at once when the mark still holds
    fetch [--config FILE] --check     only report whether it holds (exit 0) or not (exit 1)
    fetch [--config FILE] --reverify  forget what was verified and hash every file again

--neighbour FILE says which host of the inventory is asked for files before the source.

Runs as kimi-fetch.service. Its state is on the disk beside the files, so being killed at any moment
loses at most the bytes in flight.
"""

from __future__ import annotations

import argparse
import os
import shutil
import threading
import urllib.parse
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
)

from kimi_prov.contract import paths
from kimi_prov.contract.errors import EXIT_TRANSIENT, HostError
from kimi_prov.contract.sizes import format_bytes, format_file_count
from kimi_prov.on_host.system import file_lock
from kimi_prov.on_host.system.files import find_size, read_json, remove, write_json
from kimi_prov.on_host.system.job import run_job
from kimi_prov.on_host.weights import manifest as manifests
from kimi_prov.on_host.weights.bucket import RANGE_BYTES, BucketSource
from kimi_prov.on_host.weights.manifest import Manifest, Record
from kimi_prov.on_host.weights.neighbour import Neighbour, NeighbourSource
from kimi_prov.on_host.weights.rclone import Access
from kimi_prov.on_host.weights.sources import (
    DirectorySource,
    HubSource,
    Source,
    WebSource,
    mask_url,
)
from kimi_prov.on_host.weights.transfer import (
    Patience,
    Task,
    Transfer,
    build_partial_path,
    count_present_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from kimi_prov.on_host.system.progress import Progress

CONFIG = paths.WEIGHTS
_JOURNAL = "journal.json"
_BESIDE = ("draft", "converted")
# Bytes left free beyond the files themselves: directories, the journal, the file system's own
# needs.
_MARGIN_BYTES = 64 << 20
_MARGIN_SHARE = 0.01


@dataclass(frozen=True)
class Config:
    """The plan's settings for weights, from /etc/kimi/weights.json."""

    source: str
    directory: str
    manifest: Manifest | None = None
    workers: int = 4
    token_file: str | None = None
    hf_endpoint: str | None = None
    hf_python: str | None = None
    ca_bundle: str | None = None
    #: How a bucket is reached.
    bucket: Access = field(default_factory=Access)
    range_bytes: int = RANGE_BYTES
    progress: str | None = None
    stall_s: float = 15.0
    patience: Patience = field(default_factory=Patience)
    #: Whether the caller excludes other fetches, where flock does not work between machines.
    guarded: bool = False
    #: What the engine reads beside the model: a draft, or experts that were converted elsewhere.
    beside: tuple[Config, ...] = ()

    @classmethod
    def load(cls, path: str) -> Config:
        """Read the file. Raises HostError naming the key that is wrong."""
        document = read_json(path)
        if not document:
            raise HostError(f"{path}: is missing or not JSON", "run `kimi-prov apply` again")
        return cls.from_document(document, path)

    @classmethod
    def from_document(cls, document: dict[str, Any], where: str) -> Config:
        """Parse the settings; messages name `where` they are from. Raises HostError."""
        found = cls._read(document, where)
        beside = [
            cls._read({**document, **document[key]}, f"{where}: {key}")
            for key in _BESIDE
            if isinstance(document.get(key), dict)
        ]
        return replace(found, beside=tuple(beside))

    @classmethod
    def _read(cls, document: dict[str, Any], path: str) -> Config:
        for key in ("source", "dir"):
            if not isinstance(document.get(key), str) or not document[key]:
                raise HostError(f"{path}: {key} is missing")
        pinned = document.get("manifest")
        patience = Patience(
            first_contact_s=float(document.get("first_contact_s", Patience.first_contact_s)),
            stalled_s=float(document.get("patience_s", Patience.stalled_s)),
            pause_s=float(document.get("pause_s", Patience.pause_s)),
        )
        return cls(
            source=document["source"],
            directory=document["dir"],
            manifest=None if pinned is None else manifests.parse(pinned, f"{path}: manifest"),
            workers=int(document.get("workers") or cls.workers),
            token_file=document.get("token_file"),
            hf_endpoint=document.get("hf_endpoint"),
            hf_python=document.get("hf_python"),
            ca_bundle=document.get("ca_bundle"),
            bucket=Access.from_weights(document),
            range_bytes=int(document.get("range_bytes", cls.range_bytes)),
            progress=document.get("progress"),
            stall_s=float(document.get("stall_s", cls.stall_s)),
            patience=patience,
            guarded=bool(document.get("guarded")),
        )

    def parts(self) -> list[Config]:
        """Return what is to be fetched, one directory each: the model, then what is beside it."""
        return [self, *self.beside]

    @property
    def remote(self) -> bool:
        """Return whether the source is elsewhere, so that a neighbour may be nearer."""
        return urllib.parse.urlsplit(self.source).scheme != "file"

    def source_of(self) -> Source:
        """Return the source that the address names. Raises HostError where it names none."""
        scheme = urllib.parse.urlsplit(self.source).scheme
        if scheme == "file":
            return DirectorySource(self.source)
        if scheme in ("http", "https"):
            return WebSource(self.source, self.ca_bundle, self.stall_s)
        if scheme == "hf":
            return HubSource(
                self.source,
                self.hf_python,
                self.token_file,
                self.hf_endpoint,
                self.ca_bundle,
                self.stall_s,
            )
        if scheme in ("s3", "gs"):
            return BucketSource(
                self.source, self.bucket, self.stall_s, range_bytes=self.range_bytes
            )
        raise HostError(
            f"kimi_weights_source {mask_url(self.source)!r} is not an address of weights",
            "name file:///directory, http(s)://host/path, hf://owner/repository@revision, "
            "s3://bucket/folder or gs://bucket/folder",
        )


def build_settings(weights: Mapping[str, Any], place: Callable[[str], str]) -> dict[str, Any]:
    """Return the plan's `weights` as settings where `place` says where its directories are."""
    document = {key: value for key, value in weights.items() if key not in ("bytes", "ca_bundle")}
    document["dir"] = place(weights["dir"])
    for name in _BESIDE:
        if weights.get(name):
            document[name] = {**weights[name], "dir": place(weights[name]["dir"])}
    return document


def build_journal_path(root: str) -> str:
    """Return the file in which an unfinished run stores its progress."""
    return os.path.join(root, manifests.PARTIAL, _JOURNAL)


class Journal:
    """The progress of an unfinished run: verified files, the hub's commit, a first contact."""

    def __init__(self, root: str, source: str) -> None:
        self._path = build_journal_path(root)
        known = read_json(self._path)
        same = known.get("source") == source
        self._lock = threading.Lock()
        #: Certificates of neighbours that sent wrong bytes.
        self.distrusted: list[str] = list(known.get("distrusted") or [])
        self.source = source
        self.revision: str | None = known.get("revision") if same else None
        self.contacted = bool(known.get("contacted")) if same else False
        self.records: dict[str, Record] = manifests.parse_records(known)

    def save(self) -> None:
        """Write it to the disk."""
        with self._lock:
            document: dict[str, Any] = {
                "source": self.source,
                "revision": self.revision,
                "contacted": self.contacted,
                "verified": {path: self.records[path].to_json() for path in list(self.records)},
            }
            if self.distrusted:
                document["distrusted"] = self.distrusted
            write_json(self._path, document)


def find_recorded_manifest(config: Config) -> Manifest | None:
    """Return the expected manifest, as far as this machine knows without asking the source."""
    if config.manifest is not None:
        return config.manifest
    written = manifests.load(os.path.join(config.directory, manifests.NAME))
    return written if written and written.source == mask_url(config.source) else None


def find_verified_manifest(config: Config) -> Manifest | None:
    """Return the manifest, where the mark for it is valid and no file was touched since."""
    manifest = find_recorded_manifest(config)
    holds = manifest is not None and manifests.is_mark_valid(config.directory, manifest)
    return manifest if holds else None


def run(
    config: Config,
    progress: Progress,
    distrust: Collection[str] = (),
    neighbour: Neighbour | None = None,
) -> Manifest:
    """Download and verify the manifest's files; return the manifest.

    `distrust` names files to hash again although nothing about them has changed. `neighbour`: the
    host that is asked for files before the source. Raises HostError; all bytes that have arrived
    are kept.
    """
    manifest = find_verified_manifest(config)
    if manifest is not None and not distrust:
        return manifest
    source = config.source_of()
    with _lock(config.directory, guarded=config.guarded):
        journal = Journal(config.directory, mask_url(config.source))
        journal.records.update(_read_mark(config.directory))
        for path in distrust:
            journal.records.pop(path, None)
        if neighbour is not None:
            source = _add_neighbour(config, source, neighbour, journal, progress)
        transfer = Transfer(
            source, config.directory, progress, config.patience, contacted=journal.contacted
        )
        manifest = _resolve_manifest(config, source, transfer, journal)
        if isinstance(source, NeighbourSource):
            source.total_bytes = manifest.total_bytes
        tasks, trusted = _sort(config.directory, manifest, journal.records)
        _remove_stale(config.directory, manifest)
        require_room(config.directory, manifest, [task for task in tasks if not task.check])
        journal.contacted = journal.contacted or transfer.contacted
        journal.records = trusted
        journal.save()
        remove(os.path.join(config.directory, manifests.MARK))
        _expect_bytes(progress, config.directory, manifest, tasks)

        def keep(path: str, record: Record) -> None:
            journal.records[path] = record
            journal.contacted = True
            journal.save()

        transfer.run(tasks, config.workers, keep)
        if isinstance(source, NeighbourSource) and source.taken_bytes:
            progress.say(f"{format_bytes(source.taken_bytes)} from {source.neighbour}")
        return _finish(config, manifest, journal.records)


def _add_neighbour(
    config: Config, source: Source, neighbour: Neighbour, journal: Journal, progress: Progress
) -> Source:
    """Return the source with a neighbour before it, unless that one sent wrong bytes before."""
    if neighbour.certificate_sha256 in journal.distrusted:
        progress.warn(f"{neighbour.name} sent wrong bytes before: only the source is asked")
        return source

    def left(reason: str, lied: bool) -> None:
        progress.warn(f"{reason}: the source is asked for the rest")
        if lied:
            journal.distrusted.append(neighbour.certificate_sha256)
            journal.save()

    progress.say(f"asking {neighbour.name} for files before the source")
    return NeighbourSource(source, neighbour, config.directory, stall_s=config.stall_s, left=left)


def _read_mark(root: str) -> dict[str, Record]:
    return manifests.parse_records(read_json(os.path.join(root, manifests.MARK)))


def _resolve_manifest(
    config: Config, source: Source, transfer: Transfer, journal: Journal
) -> Manifest:
    """Return the manifest: the pinned one, compared with the source's listing where it has one."""
    if config.manifest is not None and not source.needs_listing:
        return config.manifest
    try:
        listed = transfer.listing(journal.revision)
    except HostError as error:
        if not error.retryable:
            journal.revision = None
        raise
    journal.revision = listed.revision
    if config.manifest is None:
        return listed
    offered = {entry.path: entry for entry in listed.files}
    for entry in config.manifest.files:
        there = offered.get(entry.path)
        if there is None:
            raise HostError(f"{source.name} has no file {entry.path}, which the manifest names")
        if there.size != entry.size or (there.sha256 or entry.sha256) != entry.sha256:
            raise HostError(
                f"{source.name}: {entry.path} is not the file that the manifest names "
                f"({there.size} bytes, sha256 {there.sha256}; pinned: {entry.size}, "
                f"{entry.sha256})",
                "correct the revision in kimi_weights_source",
            )
    return Manifest(config.manifest.files, revision=listed.revision)


def _sort(
    root: str, manifest: Manifest, records: dict[str, Record]
) -> tuple[list[Task], dict[str, Record]]:
    """Separate what must be fetched or hashed from the records that are still valid."""
    tasks: list[Task] = []
    trusted: dict[str, Record] = {}
    for entry in manifest.files:
        path = os.path.join(root, entry.path)
        record = records.get(entry.path)
        if record and record.holds(path) and entry.sha256 in (None, record.sha256):
            trusted[entry.path] = record
        else:
            tasks.append(Task(entry, check=find_size(path) == entry.size))
    return tasks, trusted


def _remove_stale(root: str, manifest: Manifest) -> None:
    """Remove files of an earlier manifest that this one does not name.

    Loaders read every shard in the directory. Files that were never ours are left alone.
    """
    wanted = {entry.path for entry in manifest.files}
    former = manifests.load(os.path.join(root, manifests.NAME))
    for entry in former.files if former else []:
        if entry.path not in wanted:
            remove(os.path.join(root, entry.path))
    parts = os.path.join(root, manifests.PARTIAL)
    known = {build_partial_path(root, entry) for entry in manifest.files}
    for name in os.listdir(parts) if os.path.isdir(parts) else []:
        path = os.path.join(parts, name)
        if name.endswith(".part") and path not in known:
            remove(path)


def require_room(root: str, manifest: Manifest, missing: list[Task]) -> None:
    """Raise HostError before anything is written where the disk has no space for the rest."""
    needed = 0
    for task in missing:
        there = find_size(os.path.join(root, task.entry.path)) or 0
        needed += task.entry.size - count_present_bytes(root, task.entry) - there
    if needed <= 0:
        return
    needed += _MARGIN_BYTES + int(needed * _MARGIN_SHARE)
    free = shutil.disk_usage(root).free
    if free < needed:
        raise HostError(
            f"{root}: no space for the weights: {format_bytes(needed)} are still needed (of "
            f"{format_bytes(manifest.total_bytes)}) and {format_bytes(free)} are free",
            f"free {format_bytes(needed - free)} or mount a larger disk there",
        )


def _expect_bytes(progress: Progress, root: str, manifest: Manifest, tasks: list[Task]) -> None:
    total = manifest.total_bytes
    progress.expect(total)
    progress.add(total - sum(task.entry.size for task in tasks), moved=False)
    progress.add(sum(count_present_bytes(root, t.entry) for t in tasks if not t.check), moved=False)
    checks = sum(task.check for task in tasks)
    progress.say(
        f"{format_file_count(len(manifest.files))}, {format_bytes(total)}: {len(tasks) - checks} "
        f"to fetch, {checks} to verify"
    )


def _finish(config: Config, manifest: Manifest, records: dict[str, Record]) -> Manifest:
    """Write the manifest, and the mark last."""
    known = manifest.with_digests({path: record.sha256 for path, record in records.items()})
    known = Manifest(known.files, source=mask_url(config.source), revision=manifest.revision)
    root = config.directory
    write_json(os.path.join(root, manifests.NAME), known.to_json())
    manifests.write_mark(root, known, records)
    shutil.rmtree(os.path.join(root, manifests.PARTIAL), ignore_errors=True)
    return known


@contextmanager
def _lock(root: str, *, guarded: bool) -> Iterator[None]:
    """Lock the directory against a second fetch; leave no empty directory after a refusal."""
    os.makedirs(root, mode=0o755, exist_ok=True)
    path = os.path.join(root, manifests.LOCK)
    try:
        with nullcontext() if guarded else file_lock.lock(path):
            yield
    except file_lock.TakenError as error:
        raise HostError(
            f"{root}: another fetch is at work here: {error}", "wait for it to end"
        ) from None
    finally:
        # A folder that is mounted stays, and so does the message of what failed in it.
        if not (os.listdir(root) or os.path.ismount(root)):
            os.rmdir(root)


def main(argv: list[str]) -> int:
    """Entry point of the subcommand; see the module's docstring."""
    os.umask(0o022)
    parser = argparse.ArgumentParser(prog="fetch")
    parser.add_argument("--config", default=CONFIG)
    parser.add_argument("--neighbour", default=paths.NEIGHBOUR)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--reverify", action="store_true")
    options = parser.parse_args(argv)

    def work(config: Config, progress: Progress) -> int:
        if options.check:
            return max(
                _report(find_verified_manifest(part), part.directory) for part in config.parts()
            )
        near = Neighbour.load(options.neighbour)
        with progress:
            results = [
                fetch_part(part, progress, reverify=options.reverify, neighbour=near)
                for part in config.parts()
            ]
            progress.done("; ".join(results))
        return 0

    return run_job(
        "download",
        lambda: Config.load(options.config),
        lambda config: None if options.check else config.progress,
        work,
    )


def _report(manifest: Manifest | None, root: str) -> int:
    if manifest is None:
        print(f"{root}: not verified")
        return EXIT_TRANSIENT
    print(f"{root}: verified, manifest {manifest.sha256}")
    return 0


def fetch_part(
    config: Config,
    progress: Progress,
    *,
    reverify: bool = False,
    neighbour: Neighbour | None = None,
) -> str:
    """Fetch and verify one part, with a progress of its own; return its result line."""
    progress.restart()
    distrust: list[str] = []
    if reverify:
        known = find_recorded_manifest(config)
        distrust = [entry.path for entry in known.files] if known else []
    manifest = run(config, progress, distrust, neighbour if config.remote else None)
    progress.expect(manifest.total_bytes)
    progress.add(manifest.total_bytes, moved=False)
    return (
        f"{config.directory}: {format_file_count(len(manifest.files))}, "
        f"{format_bytes(manifest.total_bytes)}, verified against manifest {manifest.sha256[:12]}"
    )
