"""Copy files from a source into a directory: in parallel, resumable, hashed in the same pass.

The bytes that have arrived lie under `.kimi-partial/`, in a file named by its expected content, so
that a run after a crash or a reboot continues where the last one stopped, and never mixes two
revisions. A file gets its own name only once its digest is right.
"""

from __future__ import annotations

import errno
import http.client
import os
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable

from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.on_host.system.files import find_size, remove, sync_directory
from kimi_prov.on_host.weights.manifest import PARTIAL, Entry, Hasher, Manifest, Record
from kimi_prov.on_host.weights.sources import BusyError, LaterError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kimi_prov.on_host.system.progress import Progress
    from kimi_prov.on_host.weights.sources import Source, Stream

_CHUNK = 1 << 18
_HASH_CHUNK = 1 << 20
_MAX_BACKOFF_S = 15.0
_ATTEMPTS = 2


@dataclass(frozen=True)
class Patience:
    """How long to retry without a new byte of a file.

    The first contact has less time: a wrong host name should be reported soon, while a network that
    worked a minute ago is worth waiting for. `pause_s`: before the second attempt; it doubles.
    """

    first_contact_s: float = 120.0
    stalled_s: float = 1800.0
    pause_s: float = 1.0


class Stopped(Exception):  # noqa: N818
    """Another file failed for good; this one stops without an error of its own."""


@dataclass(frozen=True)
class Task:
    """One file of the job; `check` when it exists and only its bytes are in doubt."""

    entry: Entry
    check: bool


class Transfer:
    """One run over the files that are missing or in doubt."""

    def __init__(
        self,
        source: Source,
        root: str,
        progress: Progress,
        patience: Patience,
        *,
        contacted: bool = False,
    ) -> None:
        self._source = source
        self._root = root
        self._progress = progress
        self._patience = patience
        self._stop = threading.Event()
        self.contacted = contacted

    def run(
        self, tasks: Iterable[Task], workers: int, verified: Callable[[str, Record], None]
    ) -> None:
        """Transfer all files; `verified` is called for each file as soon as its digest was right.

        Raises the first HostError after the other files have stopped; an error that a retry cannot
        help takes precedence over a temporary one.
        """
        ordered = sorted(tasks, key=lambda task: -task.entry.size)
        lock = threading.Lock()

        def one(task: Task) -> None:
            record = self._check(task.entry) if task.check else None
            if record is None:
                record = self._fetch(task.entry)
            with lock:
                verified(task.entry.path, record)

        with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
            futures = [pool.submit(one, task) for task in ordered]
            wait(futures, return_when=FIRST_EXCEPTION)
            self._stop.set()
            for future in futures:
                future.cancel()
        errors = [f.exception() for f in futures if not f.cancelled() and f.exception()]
        real = [error for error in errors if not isinstance(error, Stopped)]
        for error in sorted(real, key=_may_be_temporary):
            if error is not None:
                raise error

    def listing(self, revision: str | None) -> Manifest:
        """Ask the source for its files, until the time limit."""
        trying = _Backoff(self, self._source.name)
        while True:
            try:
                answer = self._source.listing(revision)
            except HostError as error:
                if not error.retryable:
                    raise
                self.contacted = self.contacted or isinstance(error, BusyError)
                trying.pause(error, "")
            else:
                self.contacted = True
                return answer

    def _check(self, entry: Entry) -> Record | None:
        """Hash a file that exists; None (and the file removed) when its bytes are wrong."""
        path = os.path.join(self._root, entry.path)
        hasher = entry.hasher()
        with open(path, "rb", buffering=0) as stream:
            self._hash(stream.fileno(), hasher, entry.size)
            if hasher.matches() and os.fstat(stream.fileno()).st_size == entry.size:
                return Record.from_file(path, hasher.sha256())
        self._progress.add(-entry.size)
        self._progress.say(f"{entry.path}: its bytes are not the manifest's; fetching it again")
        remove(path)
        return None

    def _fetch(self, entry: Entry) -> Record:
        part = build_partial_path(self._root, entry)
        tried = 0
        while tried < _ATTEMPTS:
            hasher = self._receive(entry, part)
            if hasher.matches():
                return self._keep(entry, part, hasher)
            remove(part)
            self._progress.add(-entry.size)
            self._progress.say(f"{entry.path}: arrived with the wrong bytes")
            tried += not self._source.wrong(entry)
        raise HostError(
            f"{entry.path} from {self._source.name}: its sha256 is {hasher.sha256()} and the "
            f"manifest says {entry.sha256 or entry.git_sha1}: the source is corrupt or of another "
            "revision",
            "correct kimi_weights_source or kimi_weights_manifest",
        )

    def _keep(self, entry: Entry, part: str, hasher: Hasher) -> Record:
        final = os.path.join(self._root, entry.path)
        os.makedirs(os.path.dirname(final), mode=0o755, exist_ok=True)
        os.replace(part, final)
        sync_directory(os.path.dirname(final))
        return Record.from_file(final, hasher.sha256())

    def _receive(self, entry: Entry, part: str) -> Hasher:
        """Complete the partial file; the digest covers the bytes that were there before."""
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            partial = _Partial(descriptor, entry, self._progress)
            if partial.offset:
                self._progress.say(
                    f"{entry.path}: going on after {format_bytes(partial.offset)} of "
                    f"{format_bytes(entry.size)}"
                )
                self._hash(descriptor, partial.hasher, partial.offset, count=False)
            self._fill(partial)
            os.fchmod(descriptor, 0o644)
            os.fsync(descriptor)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _make_full_error(self._root, entry) from None
            raise
        finally:
            os.close(descriptor)
        return partial.hasher

    def _fill(self, partial: _Partial) -> None:
        entry = partial.entry
        trying = _Backoff(self, entry.path)
        furthest = partial.offset
        while partial.offset < entry.size:
            self.check_stopped()
            try:
                stream = self._source.open(entry, partial.offset)
                self.contacted = True
                if stream.offset != partial.offset:
                    partial.restart()
                self._progress.say(f"{entry.path} of {format_bytes(entry.size)}", log=False)
                cut = self._pump(stream, partial)
            except LaterError as error:
                # The source that raises this limits the number of retries itself.
                trying.again()
                self._progress.say(error.message, log=False)
                self.wait_or_stop(error.after_s)
                continue
            except HostError as error:
                if not error.retryable:
                    raise
                self.contacted = self.contacted or isinstance(error, BusyError)
                cut = error
            if partial.offset > furthest:
                furthest = partial.offset
                trying.again()
            if cut is not None:
                kept = f" ({format_bytes(partial.offset)} of {format_bytes(entry.size)} kept)"
                trying.pause(cut, kept)

    def _pump(self, stream: Stream, partial: _Partial) -> HostError | None:
        """Read to the end of the file; else return the error that cut it short."""
        try:
            while partial.offset < partial.entry.size:
                self.check_stopped()
                try:
                    data = stream.read(min(_CHUNK, partial.entry.size - partial.offset))
                except (OSError, http.client.HTTPException) as error:
                    return HostError(
                        f"the transfer was cut: {describe_error(error)}", retryable=True
                    )
                if not data:
                    return HostError("the server closed the connection early", retryable=True)
                partial.append(data)
        finally:
            stream.close()
        return None

    def _hash(self, descriptor: int, hasher: Hasher, size: int, *, count: bool = True) -> None:
        """Add the first `size` bytes of a file to the digest."""
        buffer = memoryview(bytearray(_HASH_CHUNK))
        offset = 0
        while offset < size:
            self.check_stopped()
            got = os.preadv(descriptor, [buffer[: min(_HASH_CHUNK, size - offset)]], offset)
            if not got:
                return
            hasher.update(buffer[:got])
            offset += got
            if count:
                self._progress.add(got)

    def check_stopped(self) -> None:
        """Raise Stopped when another file has failed for good."""
        if self._stop.is_set():
            raise Stopped

    def wait_or_stop(self, seconds: float) -> None:
        """Pause; raise Stopped at once when another file fails for good."""
        self._stop.wait(seconds)
        self.check_stopped()

    def limit_s(self) -> float:
        """Return the seconds to go on without a byte, before or after the first contact."""
        return self._patience.stalled_s if self.contacted else self._patience.first_contact_s

    @property
    def pause_s(self) -> float:
        """Seconds before the second attempt at something."""
        return self._patience.pause_s

    def say(self, line: str) -> None:
        """Write a line to the progress."""
        self._progress.say(line)


class _Backoff:
    """The pauses between attempts: doubling, up to a limit, until the time limit."""

    def __init__(self, transfer: Transfer, what: str) -> None:
        self._transfer = transfer
        self._what = what
        self.again()

    def again(self) -> None:
        """Restart the time limit, because bytes arrived."""
        self._since = time.monotonic()
        self._pause = self._transfer.pause_s

    def pause(self, error: HostError, kept: str) -> None:
        """Wait before the next attempt, or give up with the error's own message."""
        waited = time.monotonic() - self._since
        if waited + self._pause > self._transfer.limit_s():
            raise HostError(
                f"{self._what}: {error.message}; gave up after {waited:.0f} s{kept}",
                error.fix,
                retryable=True,
            )
        self._transfer.say(
            f"{self._what}: {error.message}; trying again in {self._pause:g} s{kept}"
        )
        self._transfer.wait_or_stop(self._pause)
        self._pause = min(self._pause * 2, _MAX_BACKOFF_S)


class _Partial:
    """An unfinished file: its descriptor, its present size, and the digest up to there."""

    def __init__(self, descriptor: int, entry: Entry, progress: Progress) -> None:
        self._descriptor = descriptor
        self._progress = progress
        self.entry = entry
        self.hasher = entry.hasher()
        self.offset = os.fstat(descriptor).st_size
        if self.offset > entry.size:
            os.ftruncate(descriptor, 0)
            self.offset = 0

    def append(self, data: bytes) -> None:
        """Write and hash the next bytes."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, self.offset)
            self.hasher.update(view[:written])
            self.offset += written
            self._progress.add(written)
            view = view[written:]

    def restart(self) -> None:
        """Begin again: the server answered from the first byte."""
        os.ftruncate(self._descriptor, 0)
        self._progress.add(-self.offset)
        self.offset = 0
        self.hasher = self.entry.hasher()


def build_partial_path(root: str, entry: Entry) -> str:
    """Return the path of an unfinished file."""
    return os.path.join(root, PARTIAL, f"{entry.key()}.part")


def count_present_bytes(root: str, entry: Entry) -> int:
    """Return the bytes of an unfinished file that need not be moved again."""
    size = find_size(build_partial_path(root, entry)) or 0
    return size if size <= entry.size else 0


def _may_be_temporary(error: BaseException | None) -> bool:
    """Return whether an error may be temporary: one that needs a person takes precedence."""
    return not isinstance(error, HostError) or error.retryable


def _make_full_error(root: str, entry: Entry) -> HostError:
    return HostError(
        f"{root}: the disk is full in the middle of {entry.path} ({format_bytes(entry.size)})",
        "free space and run `kimi-prov apply` again: what has arrived is kept",
    )
