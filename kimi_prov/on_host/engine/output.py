"""What an engine wrote last, to tell in its own log why it ended."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

from kimi_prov.on_host.troubles.explain import explain_lines

if TYPE_CHECKING:
    import subprocess

# Enough for a traceback of each worker.
_MAX_BYTES = 1 << 20
_READ = 1 << 16
# What an engine left may hold its output open.
_REST_S = 2.0


class OutputCopy:
    """Writes what a process writes to our own output, and keeps the end of it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101  (it was asked for)
        self._stream = process.stdout
        self._kept: deque[bytes] = deque()
        self._size = 0
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        while chunk := os.read(self._stream.fileno(), _READ):
            # Without a reader of ours, the engine goes on all the same.
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                _write_whole(chunk)
            self._kept.append(chunk)
            self._size += len(chunk)
            while self._size > _MAX_BYTES and len(self._kept) > 1:
                self._size -= len(self._kept.popleft())

    def read_end(self) -> bytes:
        """Return the end of what was written, once the process has ended."""
        self._thread.join(_REST_S)
        return b"".join(list(self._kept))


def _write_whole(chunk: bytes) -> None:
    while chunk:
        chunk = chunk[os.write(1, chunk) :]


def read_own_output(since: str = "") -> bytes:
    """Return the end of the file that our output goes to; empty where it goes to no file.

    `since`: only what stands behind the last line that begins so.
    """
    try:
        if not stat.S_ISREG(os.fstat(1).st_mode):
            return b""
        with open("/proc/self/fd/1", "rb") as file:
            file.seek(max(0, os.fstat(1).st_size - _MAX_BYTES))
            content = file.read(_MAX_BYTES)
    except OSError:
        return b""
    return content.rpartition(f"\n{since}".encode())[2] if since else content


def format_cause(output: bytes) -> list[str]:
    """Return the cause that these lines of an engine show, as lines; none where none is known."""
    explanation = explain_lines(output.decode("utf-8", "replace").split("\n"))
    return explanation.format_lines() if explanation else []
