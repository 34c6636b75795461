"""Progress of a long job, in a small file that all users may read while it runs."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.durations import format_duration
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.on_host.system.files import write_json

if TYPE_CHECKING:
    from kimi_prov.contract.errors import HostError

_INTERVAL_S = 0.5
_WINDOW_S = 10.0


class Progress:
    """Counts bytes from many threads and writes the file at most twice a second.

    `path` None writes no file.
    """

    def __init__(self, path: str | None, phase: str, total_bytes: int = 0) -> None:
        self._path = path
        self._phase = phase
        self._lock = threading.Lock()
        self._total = total_bytes
        self._done = 0
        self._moved = 0
        self._line = "starting"
        self._warnings: list[str] = []
        self._started = time.time()
        self._samples: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])
        self._tell_s = 0.0
        self._told = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        self._write("running", None)
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def restart(self) -> None:
        """Start counting again: the next job has its own bytes and rate."""
        with self._lock:
            self._total = self._done = self._moved = 0
            self._samples = deque([(time.monotonic(), 0)])

    def expect(self, total_bytes: int) -> None:
        """Set how many bytes the job has."""
        with self._lock:
            self._total = total_bytes

    def add(self, count: int, *, moved: bool = True) -> None:
        """Count bytes done; `moved` False for bytes that existed before and do not count as speed.

        A negative count takes back bytes that turned out to be wrong.
        """
        with self._lock:
            self._done += count
            if moved and count > 0:
                self._moved += count

    def say(self, line: str, *, log: bool = True) -> None:
        """Set the line under the bar, and write it to the journal."""
        with self._lock:
            self._line = line
        if log:
            print(line, flush=True)

    def warn(self, text: str) -> None:
        """Report a difference from the plan, and store it beside the result."""
        with self._lock:
            self._warnings.append(text)
        self.say(text)

    def tell_every(self, seconds: float) -> None:
        """Print the progress every so many seconds, for jobs whose log is all that is seen."""
        self._tell_s = seconds

    def done(self, message: str) -> None:
        """Write the end of a successful job."""
        self._stop.set()
        with self._lock:
            self._line = message
        print(message, flush=True)
        self._write("done", message)

    def fail(self, error: HostError) -> None:
        """Write why the job ended."""
        self._stop.set()
        print(error.line, file=sys.stderr, flush=True)
        self._write("failed", error.message, error)

    def _tick(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            self._write("running", None)
            if self._tell_s and time.monotonic() - self._told >= self._tell_s:
                self._told = time.monotonic()
                print(self._so_far(), flush=True)

    def _so_far(self) -> str:
        with self._lock:
            rate, done, total = self._rate(), max(0, min(self._done, self._total)), self._total
        share = f" ({100 * done / total:.0f} %)" if total else ""
        left = f", about {format_duration((total - done) / rate)} left" if rate > 0 else ""
        return f"{format_bytes(done)} of {format_bytes(total)}{share}, {format_bytes(rate)}/s{left}"

    def _rate(self) -> float:
        """Bytes per second over the last seconds, so that a stall is visible."""
        now = time.monotonic()
        self._samples.append((now, self._moved))
        while len(self._samples) > 2 and now - self._samples[0][0] > _WINDOW_S:
            self._samples.popleft()
        since, moved = self._samples[0]
        return (self._moved - moved) / (now - since) if now > since else 0.0

    def _write(self, state: str, message: str | None, error: HostError | None = None) -> None:
        if self._path is None:
            return
        with self._lock:
            if state == "running" and self._stop.is_set():
                return  # The ticker woke after the end was written.
            rate = self._rate()
            left = max(0, self._total - self._done)
            document: dict[str, Any] = {
                "phase": self._phase,
                "state": state,
                "message": message,
                "line": self._line,
                "done_bytes": max(0, min(self._done, self._total)),
                "total_bytes": self._total,
                "rate_bytes_per_s": round(rate),
                "eta_s": round(left / rate) if rate > 0 and state == "running" else None,
                "started_at": self._started,
                "updated_at": time.time(),
                "will_retry": error is not None and error.retryable,
                "error": error.to_json() if error else None,
                "invocation": os.environ.get("INVOCATION_ID"),
                **({"warnings": list(self._warnings)} if self._warnings else {}),
            }
            write_json(self._path, document, durable=False)
