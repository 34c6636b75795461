"""`s3://` and `gs://`: weights in a bucket, read in parallel ranges.

A file's bytes come in order, as from every source, so that they are hashed as they arrive and a
partial file is always a beginning of the file. Several ranges ahead are fetched meanwhile: one
connection to a bucket is slower than a disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.weights import manifest as manifests
from kimi_prov.on_host.weights.rclone import Access, Bucket, Row, ThrottledError
from kimi_prov.on_host.weights.sources import BusyError, Source, Stream, describe_other_size

if TYPE_CHECKING:
    from kimi_prov.on_host.weights.manifest import Entry, Manifest

# Ranges of one file at a time; kimi_weights_workers files are fetched at a time.
RANGES = 4
RANGE_BYTES = 64 << 20
_CHUNK = 1 << 18
_MANIFEST_LIMIT = 64 << 20
# Seconds for a program that neither answers nor ends; rclone's own limit is for a silent
# connection.
_SILENT_S = 120.0


class BucketSource(Source):
    """A folder of a bucket, with the manifest that `weights seed` writes there, or a pinned one."""

    def __init__(
        self,
        url: str,
        access: Access,
        stall_s: float,
        *,
        ranges: int = RANGES,
        range_bytes: int = RANGE_BYTES,
    ) -> None:
        self._bucket = Bucket(url, access, stall_s)
        self.name = self._bucket.name
        self._silent_s = _SILENT_S + 4 * stall_s
        self._ranges = ranges
        self._range_bytes = range_bytes
        self._lock = threading.Lock()
        self._listed: dict[str, Row] | None = None

    def listing(self, _revision: str | None) -> Manifest:
        """Read the manifest beside the files."""
        try:
            content = self._bucket.read(manifests.NAME, _MANIFEST_LIMIT)
        except ThrottledError as error:
            raise BusyError(error.message) from None
        where = f"{self.name}/{manifests.NAME}"
        if content is None:
            raise HostError(
                f"{where}: there is no such file",
                "set kimi_weights_manifest, or fill the bucket with  kimi-prov weights seed",
            )
        try:
            document = json.loads(content)
        except ValueError:
            raise HostError(f"{where}: is not JSON") from None
        return manifests.parse(document, where)

    def open(self, entry: Entry, offset: int) -> Stream:
        """Open one of its files from `offset`, after a check of its size."""
        row = self._objects().get(entry.path)
        if row is None:
            raise HostError(
                f"{self.name} has no file {entry.path}, which the manifest names",
                "fill the bucket with  kimi-prov weights seed",
            )
        if row.size != entry.size:
            raise HostError(describe_other_size(f"{self.name}/{entry.path}", row.size, entry))
        ranges = _Ranges(self._bucket, entry, offset, self._ranges, self._range_bytes)
        ranges.silent_s = self._silent_s
        return Stream(ranges, offset)

    def _objects(self) -> dict[str, Row]:
        """List the bucket once; the lock makes the other files wait for that listing."""
        with self._lock:
            if self._listed is None:
                try:
                    self._listed = self._bucket.objects()
                except ThrottledError as error:
                    raise BusyError(error.message) from None
            return self._listed


class _Ranges:
    """The bytes of an object from an offset on, in order, from several ranges at a time."""

    silent_s = _SILENT_S

    def __init__(
        self, bucket: Bucket, entry: Entry, offset: int, most: int, range_bytes: int
    ) -> None:
        self._bucket = bucket
        self._entry = entry
        self._next = offset
        self._most = most
        self._range_bytes = range_bytes
        self._under_way: deque[_Range] = deque()

    def read1(self, limit: int) -> bytes:
        """Return the next bytes; empty at the end. Raises HostError, or OSError on a stall."""
        while True:
            self._start()
            if not self._under_way:
                return b""
            data = self._under_way[0].read(limit, self.silent_s)
            if data:
                return data
            self._under_way.popleft().close()

    def _start(self) -> None:
        while len(self._under_way) < self._most and self._next < self._entry.size:
            size = min(self._range_bytes, self._entry.size - self._next)
            self._under_way.append(_Range(self._bucket, self._entry.path, self._next, size))
            self._next += size

    def close(self) -> None:
        for part in self._under_way:
            part.close()
        self._under_way.clear()


class _Range:
    """One range: a process that reads it, and a thread that stores what has come."""

    def __init__(self, bucket: Bucket, path: str, offset: int, size: int) -> None:
        self._bucket = bucket
        self._size = size
        self._chunks: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._error: HostError | None = None
        where = ("--offset", str(offset), "--count", str(size))
        self._process = bucket.start("cat", *where, bucket.locate(path))
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        came = 0
        assert self._process.stdout and self._process.stderr  # noqa: S101, PT018
        said: list[bytes] = []
        listener = threading.Thread(
            target=lambda stream: said.append(stream.read()), args=(self._process.stderr,)
        )
        listener.daemon = True
        listener.start()
        while True:
            data = os.read(self._process.stdout.fileno(), _CHUNK)
            if not data:
                break
            came += len(data)
            with self._changed:
                self._chunks.append(data)
                self._changed.notify_all()
        status = self._process.wait()
        listener.join()
        error = None
        if came != self._size or status != 0:
            error = self._reason(status, b"".join(said).decode("utf-8", "replace"))
        with self._changed:
            self._error, self._ended = error, True
            self._changed.notify_all()

    def _reason(self, status: int, said: str) -> HostError:
        if status == 0 or not said.strip():
            return HostError("the bucket closed the connection early", retryable=True)
        try:
            self._bucket.fail(said)
        except ThrottledError as error:
            return BusyError(error.message)
        except HostError as error:
            return error

    def read(self, limit: int, silent_s: float) -> bytes:
        """Return what has come, `limit` bytes at most; empty at the end of the range."""
        end = time.monotonic() + silent_s
        with self._changed:
            while not self._chunks and not self._ended:
                left = end - time.monotonic()
                if left <= 0:
                    raise OSError(f"no byte in {silent_s:.0f} s")
                self._changed.wait(left)
            if not self._chunks:
                if self._error is not None:
                    raise self._error
                return b""
            data = self._chunks.popleft()
            if len(data) > limit:
                self._chunks.appendleft(data[limit:])
                data = data[:limit]
            return data

    def close(self) -> None:
        """End the process, whatever its state."""
        with contextlib.suppress(ProcessLookupError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._thread.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
