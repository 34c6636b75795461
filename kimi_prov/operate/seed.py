"""Fill a bucket from the hub, each file verified on the way, without room on the disk.

A file's bytes go from the hub into rclone as they come, and are hashed in the same pass. The last
byte is held back until the digest is known: if the digest is wrong, the upload is aborted and no
object is created. Progress is recorded in an object of its own, so that a run after an interrupted
one, also on another machine, uploads only the files that are missing.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tempfile
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.on_host.system import process
from kimi_prov.on_host.weights import manifest as manifests
from kimi_prov.on_host.weights.bucket_check import list_missing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kimi_prov.on_host.weights.manifest import Entry, Manifest
    from kimi_prov.on_host.weights.rclone import Bucket, Row
    from kimi_prov.on_host.weights.sources import Stream

RECORD = ".kimi-seed.json"
_RECORD_LIMIT = 16 << 20
_CHUNK = 1 << 20
_ATTEMPTS = 2
# Parts of 32 MiB: ten thousand of them, the most that S3 takes, hold any shard.
# In MiB. The rclone of Ubuntu 22.04 (1.53) does not know the letters Mi.
_MULTIPART_OPTIONS = ("--s3-chunk-size", "32M", "--s3-upload-concurrency", "2")
_MAX_RETRY_DELAY_S = 30.0
_KILL_TIMEOUT_S = 30.0


class _Stopped(Exception):  # noqa: N818
    """Another file failed for good."""


@dataclass(frozen=True)
class Limits:
    """Files at a time, and how long to go on without a new byte."""

    workers: int = 4
    patience_s: float = 1800.0
    pause_s: float = 1.0


@dataclass
class Seeding:
    """One run: from `opened` (a file of the hub from an offset) into a bucket."""

    manifest: Manifest
    bucket: Bucket
    opened: Callable[[Entry, int], Stream]
    say: Callable[[str], None]
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._done: dict[str, dict[str, Any]] = {}
        self.uploaded_bytes = 0

    def missing(self) -> list[Entry]:
        """List the files that no earlier run recorded as uploaded and verified."""
        rows = self.bucket.objects()
        self._done = {
            path: row
            for path, row in self._recorded(rows).items()
            if _is_unchanged(rows.get(path), row)
        }
        return [
            entry
            for entry in self.manifest.files
            if self._done.get(entry.path, {}).get("sha256") != entry.sha256
        ]

    def run(self) -> int:
        """Upload the missing files, then the manifest; returns the number of files uploaded.

        Raises HostError, with every whole file kept.
        """
        missing = self.missing()
        rows = self.bucket.objects()
        if missing and manifests.NAME in rows:
            # The old manifest names other files: without it, nobody reads a mix of two revisions.
            self._remove(manifests.NAME)
        ordered = sorted(missing, key=lambda entry: -entry.size)
        with ThreadPoolExecutor(max_workers=self.limits.workers) as pool:
            futures = [pool.submit(self._bring, entry) for entry in ordered]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                self._stop.set()
                for future in futures:
                    future.cancel()
        errors = [f.exception() for f in futures if not f.cancelled() and f.exception()]
        for error in sorted(errors, key=_is_temporary):
            if error is not None and not isinstance(error, _Stopped):
                raise error
        self._finish()
        return len(missing)

    def _finish(self) -> None:
        rows = self.bucket.objects()
        wrong = list_missing(self.manifest, rows)
        if wrong:
            raise HostError(f"{self.bucket.name}: {', '.join(wrong)}", "run the same command again")
        text = json.dumps(self.manifest.to_json(), indent=1) + "\n"
        if manifests.NAME not in rows or self._read_kept(manifests.NAME) != text.encode():
            self.bucket.write(manifests.NAME, text.encode())

    def _read_kept(self, name: str) -> bytes | None:
        return self.bucket.read(name, _RECORD_LIMIT)

    def _recorded(self, rows: Mapping[str, Row]) -> dict[str, dict[str, Any]]:
        content = self._read_kept(RECORD) if RECORD in rows else None
        try:
            known = json.loads(content or b"{}")["verified"]
            return {str(path): dict(row) for path, row in known.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}

    # --- one file ---------------------------------------------------------------------------

    def _bring(self, entry: Entry) -> None:
        began = time.monotonic()
        digest = ""
        for attempt in range(_ATTEMPTS):
            digest = self._uploaded(entry)
            if digest == entry.sha256:
                break
            self.say(f"{entry.path}: arrived with the wrong bytes")
            if attempt + 1 == _ATTEMPTS:
                raise HostError(
                    f"{entry.path}: its sha256 is {digest} and the hub says {entry.sha256}: what "
                    "came is corrupt; nothing of it is in the bucket",
                    "run the same command again, from another network if it stays so",
                )
        took = max(time.monotonic() - began, 1e-3)
        self.say(
            f"{entry.path}: {format_bytes(entry.size)}, verified, "
            f"{format_bytes(entry.size / took)}/s"
        )
        self._note(entry)

    def _note(self, entry: Entry) -> None:
        """Record that a file is complete: its size in the listing, and when it was written."""
        with self._lock:
            row = self.bucket.objects().get(entry.path)
            if row is None or row.size != entry.size:
                seen = "is not in the listing" if row is None else f"has {row.size} bytes there"
                raise HostError(f"{self.bucket.name}: {entry.path} {seen}", retryable=True)
            self.uploaded_bytes += entry.size
            self._done[entry.path] = {
                "size": entry.size,
                "sha256": entry.sha256,
                "modified": row.modified,
            }
            document = {"revision": self.manifest.revision, "verified": self._done}
            self.bucket.write(RECORD, (json.dumps(document, sort_keys=True) + "\n").encode())

    def _uploaded(self, entry: Entry) -> str:
        """Send a file from the hub into the bucket; returns the SHA-256 of what came.

        If it differs from the manifest's, no object was created.
        """
        trying = _RetryDelay(self, entry.path)
        while True:
            self._check_stopped()
            try:
                return self._once(entry, trying)
            except HostError as error:
                if not error.retryable:
                    raise
                trying.pause(error)

    def _once(self, entry: Entry, trying: _RetryDelay) -> str:
        hasher = entry.hasher()
        with tempfile.TemporaryFile() as said:
            upload = self._upload(entry, said)
            try:
                assert upload.stdin is not None  # noqa: S101
                held = b""
                for data in self._received(entry, trying):
                    upload.stdin.write(held)
                    hasher.update(data)
                    held = data
                if not hasher.matches():
                    return hasher.sha256()
                upload.stdin.write(held)
                upload.stdin.close()
                status = upload.wait()
            except BrokenPipeError:
                status = upload.wait()
            finally:
                _end_upload(upload)
            if status != 0:
                said.seek(0)
                self.bucket.fail(said.read(1 << 16).decode("utf-8", "replace"))
        return hasher.sha256()

    def _upload(self, entry: Entry, said: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
        self.bucket.require_credentials()
        return subprocess.Popen(
            self.bucket.command(
                "rcat",
                "--size",
                str(entry.size),
                *_MULTIPART_OPTIONS,
                self.bucket.locate(entry.path),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=self.bucket.environment(),
            start_new_session=True,
        )

    def _received(self, entry: Entry, trying: _RetryDelay) -> Any:  # noqa: ANN401  (a generator)
        """Give a file's bytes in order; after an interruption it continues at the same offset."""
        offset = 0
        while offset < entry.size:
            self._check_stopped()
            try:
                stream = self.opened(entry, offset)
            except HostError as error:
                if not error.retryable:
                    raise
                trying.pause(error)
                continue
            if stream.offset != offset:
                stream.close()
                raise HostError("the hub answered from the first byte", retryable=True)
            try:
                while offset < entry.size:
                    self._check_stopped()
                    data = stream.read(min(_CHUNK, entry.size - offset))
                    if not data:
                        break
                    offset += len(data)
                    trying.again()
                    yield data
            except (OSError, HTTPException) as error:
                if isinstance(error, BrokenPipeError):
                    raise
                trying.pause(
                    HostError(f"the transfer was cut: {describe_error(error)}", retryable=True)
                )
            finally:
                stream.close()

    # --- small things -----------------------------------------------------------------------

    def _remove(self, name: str) -> None:
        done = process.run(
            *self.bucket.command("deletefile", self.bucket.locate(name)),
            env=self.bucket.environment(),
            timeout=None,
        )
        if done.returncode != 0:
            self.bucket.fail(done.stderr)

    def _check_stopped(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def pause(self, seconds: float) -> None:
        """Wait; raises at once when another file fails for good."""
        self._stop.wait(seconds)
        self._check_stopped()


class _RetryDelay:
    """Doubling pauses between attempts at one file, until no byte arrived for too long."""

    def __init__(self, seeding: Seeding, what: str) -> None:
        self._seeding, self._what = seeding, what
        self._pause_s = seeding.limits.pause_s
        self._since = time.monotonic()

    def again(self) -> None:
        self._since = time.monotonic()
        self._pause_s = self._seeding.limits.pause_s

    def pause(self, error: HostError) -> None:
        waited = time.monotonic() - self._since
        if waited + self._pause_s > self._seeding.limits.patience_s:
            raise HostError(
                f"{self._what}: {error.message}; gave up after {waited:.0f} s", error.fix
            ) from None
        self._seeding.say(f"{self._what}: {error.message}; again in {self._pause_s:.0f} s")
        self._seeding.pause(self._pause_s)
        self._pause_s = min(self._pause_s * 2, _MAX_RETRY_DELAY_S)


def _is_unchanged(there: Row | None, recorded: Mapping[str, Any]) -> bool:
    """Whether an object is as it was recorded: the same size, and not written since."""
    return there is not None and (there.size, there.modified) == (
        recorded.get("size"),
        recorded.get("modified"),
    )


def _end_upload(upload: subprocess.Popen[bytes]) -> None:
    """End an unfinished upload: on SIGTERM rclone removes the parts that it has sent."""
    if upload.poll() is None:
        upload.send_signal(signal.SIGTERM)
        try:
            upload.wait(_KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            upload.kill()
            upload.wait()
    if upload.stdin is not None:
        with contextlib.suppress(OSError):
            upload.stdin.close()


def _is_temporary(error: BaseException | None) -> bool:
    """Whether an error may be temporary; an error that needs a person is not."""
    return not isinstance(error, HostError) or error.retryable
