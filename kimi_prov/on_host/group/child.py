"""The engine as a child process in its own process group; it never outlives its parent.

The kernel ends it when the supervisor dies, and systemd ends what is then left in the unit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from typing import Callable

_PR_SET_PDEATHSIG = 1
_POLL_INTERVAL_S = 0.1


class Child:
    """A process and its children, as long as they stay in its process group."""

    def __init__(self, command: list[str]) -> None:
        # Loaded before the fork: nothing may be imported between the fork and the start.
        libc = ctypes.CDLL(None, use_errno=True)
        parent = os.getpid()

        def tied() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

        # The supervisor has no thread at this fork: it starts one once the engine runs.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=tied,  # noqa: PLW1509
        )

    def describe_end(self) -> str | None:
        """Say how the process ended; None while it runs."""
        status = self._process.poll()
        if status is None:
            return None
        if status >= 0:
            return f"ended with status {status}"
        try:
            return f"was ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"was ended by signal {-status}"

    def stop(self, grace_s: float, meanwhile: Callable[[], None]) -> None:
        """End the process and its group: first by SIGTERM, then by SIGKILL."""
        self._signal(signal.SIGTERM)
        until = time.monotonic() + grace_s
        while self._process.poll() is None and time.monotonic() < until:
            meanwhile()
            time.sleep(_POLL_INTERVAL_S)
        # The engine itself may be gone while its workers still run.
        self._signal(signal.SIGKILL)
        while self._process.poll() is None:
            meanwhile()
            time.sleep(_POLL_INTERVAL_S)

    def _signal(self, number: int) -> None:
        # The process's number is also its group's number; the kernel gives it to no other process
        # before the process and its workers were waited for.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
