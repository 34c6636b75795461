"""Manifests: each file's path, size and digest; and the mark that a directory matches one.

A manifest is pinned in the repository, taken from the source's own `kimi-manifest.json`, or made
from the hub's metadata. The hub knows a SHA-256 only for its large files; for small ones it gives
git's blob id, which is checked instead, and the SHA-256 of the bytes is written down.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Union

from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system.files import read_json, write_json
from kimi_prov.on_host.system.foreign_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NAME = "kimi-manifest.json"
MARK = layout.MODEL_VERIFIED
PARTIAL = ".kimi-partial"
# Exists while a fetch or a conversion runs.
LOCK = ".kimi-lock"
SCHEMA = "kimi-prov/manifest/v1"

Buffer = Union[bytes, memoryview]

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Entry:
    """One file: a path relative to the model directory, bytes, and at most one kind of digest."""

    path: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None

    def hasher(self) -> Hasher:
        """Start a digest that can check the bytes against this entry."""
        return Hasher(self)

    def key(self) -> str:
        """Return the name of the partial file, which depends on this file and its content."""
        identity = f"{self.path}\0{self.size}\0{self.sha256 or self.git_sha1 or ''}"
        return hashlib.sha256(identity.encode()).hexdigest()


class Hasher:
    """SHA-256 of the bytes, and git's blob id where the source has no other digest."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._sha256 = hashlib.sha256()
        self._git: Any = None
        if entry.sha256 is None and entry.git_sha1 is not None:
            self._git = hashlib.sha1(usedforsecurity=False)
            self._git.update(b"blob %d\0" % entry.size)

    def update(self, data: Buffer) -> None:
        """Add the next bytes, in order."""
        self._sha256.update(data)
        if self._git is not None:
            self._git.update(data)

    def sha256(self) -> str:
        """Return the digest in hexadecimal."""
        return self._sha256.hexdigest()

    def matches(self) -> bool:
        """Return whether the digest is the entry's; true for an entry without a known digest."""
        if self._entry.sha256 is not None:
            return self._sha256.hexdigest() == self._entry.sha256
        if self._git is not None:
            return bool(self._git.hexdigest() == self._entry.git_sha1)
        return True


@dataclass(frozen=True)
class Manifest:
    """The files of one model, sorted by path, and where they came from."""

    files: list[Entry]
    source: str | None = None
    revision: str | None = None

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(entry.size for entry in self.files)

    @property
    def sha256(self) -> str:
        """Return one digest for all: it depends on paths, sizes and digests, not on the source."""
        lines = [
            f"{e.path}\0{e.size}\0{e.sha256 or e.git_sha1 or ''}\n"
            for e in sorted(self.files, key=lambda e: e.path)
        ]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def with_digests(self, seen: dict[str, str]) -> Manifest:
        """Return the manifest with the SHA-256 of the bytes where none was known."""
        return replace(
            self,
            files=[
                Entry(e.path, e.size, e.sha256 or seen[e.path]) if e.path in seen else e
                for e in self.files
            ],
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document."""
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "files": [_format_entry(e) for e in sorted(self.files, key=lambda e: e.path)],
        }
        if self.source:
            document["source"] = self.source
        if self.revision:
            document["revision"] = self.revision
        return document


def _format_entry(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {"path": entry.path, "size": entry.size}
    if entry.sha256:
        row["sha256"] = entry.sha256
    if entry.git_sha1:
        row["git_sha1"] = entry.git_sha1
    return row


def parse(document: object, where: str) -> Manifest:
    """Parse a manifest; refuse paths outside the directory and files without a digest.

    `where` names the file or URL in the message. Raises HostError.
    """
    table = document if isinstance(document, dict) else {}
    files = table.get("files")
    if not isinstance(files, list) or not files:
        raise HostError(f'{where}: expected {{"files": [{{"path", "size", "sha256"}}, ...]}}')
    entries = [_parse_entry(row, f"{where}: files[{number}]") for number, row in enumerate(files)]
    paths = {entry.path for entry in entries}
    if len(paths) < len(entries):
        twice = Counter(entry.path for entry in entries).most_common(1)[0][0]
        raise HostError(f"{where}: {twice} is listed twice")
    for path in sorted(paths):
        if any(folder in paths for folder in _list_folders(path)):
            raise HostError(f"{where}: {path} lies below another file")
    return Manifest(
        files=sorted(entries, key=lambda e: e.path),
        source=_as_text(table.get("source")),
        revision=_as_text(table.get("revision")),
    )


def _list_folders(path: str) -> Iterator[str]:
    """Return the folders of a relative path, the innermost first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _as_text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _parse_entry(row: object, where: str) -> Entry:
    if not isinstance(row, dict):
        raise HostError(f"{where}: expected an object with path, size and sha256")
    path, size = row.get("path"), row.get("size")
    if not isinstance(path, str) or not is_safe_path(path):
        raise HostError(f"{where}: path {path!r} is not a plain relative path")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise HostError(f"{where} ({path}): size {size!r} is not a number of bytes")
    sha256, git_sha1 = row.get("sha256"), row.get("git_sha1")
    if isinstance(sha256, str) and _SHA256.fullmatch(sha256.lower()):
        return Entry(path, size, sha256.lower())
    if sha256 is None and isinstance(git_sha1, str) and _SHA1.fullmatch(git_sha1):
        return Entry(path, size, None, git_sha1)
    raise HostError(f"{where} ({path}): sha256 {sha256!r} is not 64 hexadecimal digits")


def is_safe_path(path: str) -> bool:
    """Return whether a path stays inside the directory and is not one of our own names."""
    parts = path.split("/")
    if not path or path.startswith("/") or "\\" in path or any(ord(c) < 32 for c in path):
        return False
    if any(part in ("", ".", "..") for part in parts):
        return False
    return parts[0] not in (NAME, MARK, PARTIAL, LOCK)


def load(path: str) -> Manifest | None:
    """Read the manifest in a file, or None where there is none (or half of one)."""
    document = read_json(path)
    return parse(document, path) if document else None


def list_directory(root: str) -> Iterable[Entry]:
    """List the files of a directory without their digests; hidden and own files are left out.

    Raises HostError for anything but a file.
    """
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), root)
            if not name.startswith(".") and is_safe_path(path):
                yield Entry(path, _find_size(os.path.join(folder, name)))


def _find_size(path: str) -> int:
    descriptor = open_regular(path)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Record:
    """A file's digest, and its `stat` at that time: a change of either is noticed."""

    size: int
    mtime_ns: int
    sha256: str

    @classmethod
    def from_file(cls, path: str, sha256: str) -> Record:
        """Record a file as it is now."""
        stat = os.stat(path)
        return cls(stat.st_size, stat.st_mtime_ns, sha256)

    def holds(self, path: str) -> bool:
        """Return whether the file's `stat` is as it was when its digest was computed."""
        try:
            stat = os.stat(path)
        except FileNotFoundError:
            return False
        return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {"size": self.size, "mtime_ns": self.mtime_ns, "sha256": self.sha256}


def parse_records(document: object) -> dict[str, Record]:
    """Read the records of a mark or journal; a record that cannot be read counts as missing."""
    rows = document.get("verified") if isinstance(document, dict) else None
    found: dict[str, Record] = {}
    for path, row in rows.items() if isinstance(rows, dict) else ():
        try:
            found[path] = Record(int(row["size"]), int(row["mtime_ns"]), str(row["sha256"]))
        except (KeyError, TypeError, ValueError):
            continue
    return found


def write_mark(root: str, manifest: Manifest, records: dict[str, Record]) -> None:
    """Write the mark that the directory holds the manifest's files, verified. Call it last."""
    write_json(
        os.path.join(root, MARK),
        {
            "manifest_sha256": manifest.sha256,
            "verified_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "verified": {path: record.to_json() for path, record in records.items()},
        },
    )


def is_mark_valid(root: str, manifest: Manifest) -> bool:
    """Return whether the mark is for this manifest and no file was touched since."""
    document = read_json(os.path.join(root, MARK))
    if document.get("manifest_sha256") != manifest.sha256:
        return False
    records = parse_records(document)
    return all(
        entry.path in records
        and records[entry.path].sha256 == entry.sha256
        and records[entry.path].holds(os.path.join(root, entry.path))
        for entry in manifest.files
    )


def main(argv: list[str]) -> int:
    """`manifest DIR`: print the manifest of a directory, to be pinned or put beside it."""
    if len(argv) != 1 or not os.path.isdir(argv[0]):
        raise HostError("usage: manifest DIRECTORY")
    rows = []
    buffer = bytearray(1 << 20)
    for entry in list_directory(argv[0]):
        hasher = entry.hasher()
        file = open_regular(os.path.join(argv[0], entry.path))
        with os.fdopen(file, "rb", buffering=0) as stream:
            while True:
                count = stream.readinto(buffer)
                if not count:
                    break
                hasher.update(memoryview(buffer)[:count])
        rows.append(replace(entry, sha256=hasher.sha256()))
    print(json.dumps(Manifest(rows).to_json(), indent=1))
    return 0
