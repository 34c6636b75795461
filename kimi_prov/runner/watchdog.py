"""End a run whose command line was killed, and remove its private folder.

The watchdog is a process in a session of its own. It reads standard input to its end; if the last
word is not `done`, the command line is dead. It inherits the run's lock, so that no other run
begins before the last process of the dead run has ended.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_DONE = b"done"


class Watchdog:
    """The command line's side: it starts the process before the run, and ends it after the run."""

    def __init__(self, run_id: str, private: Path, inherit: Sequence[int] = ()) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kimi_prov.runner.watchdog"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=tuple(inherit),
        )
        self._write(json.dumps({"run": run_id, "private": str(private)}).encode() + b"\n")

    @property
    def pid(self) -> int:
        """The watchdog's process id."""
        return self._process.pid

    def dismiss(self) -> None:
        """Write the word `done`, and wait for the watchdog's end."""
        self._write(_DONE)
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()

    def _write(self, data: bytes) -> None:
        stream = self._process.stdin
        if stream is None:
            return
        try:
            stream.write(data)
            stream.flush()
        except OSError:
            return  # the watchdog was killed: the run itself goes on


def watch() -> None:
    """Wait for the end of standard input; clean up unless the last word was `done`."""
    first = sys.stdin.buffer.readline()
    if not first or sys.stdin.buffer.read() == _DONE:
        return
    # Imported late: a run that ends well does not pay for it.
    from kimi_prov.runner import cancel  # noqa: PLC0415

    order = json.loads(first)
    private = Path(order["private"])
    cancel.end_run(order["run"], private)
    shutil.rmtree(private, ignore_errors=True)


if __name__ == "__main__":
    watch()
