"""The engine as a child process: in a process group of its own, and never longer than its parent.

The kernel ends it when the supervisor dies, and systemd ends what else is left in the unit.
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
    """A process and those that it starts, as long as they stay in its group."""

    def __init__(self, command: list[str]) -> None:
        # Loaded before the fork: nothing may be imported between it and the start.
        libc = ctypes.CDLL(None, use_errno=True)
        parent = os.getpid()

        def tied() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

        # The supervisor has no thread yet: it asks an engine that runs.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=tied,  # noqa: PLW1509
        )

    def describe_end(self) -> str | None:
        """Tell how it ended; None while it runs."""
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
        """End it and its process group: asked at first, then by the kernel."""
        self._signal(signal.SIGTERM)
        until = time.monotonic() + grace_s
        while self._process.poll() is None and time.monotonic() < until:
            meanwhile()
            time.sleep(_POLL_INTERVAL_S)
        # The engine itself may be gone and its workers not.
        self._signal(signal.SIGKILL)
        while self._process.poll() is None:
            meanwhile()
            time.sleep(_POLL_INTERVAL_S)

    def _signal(self, number: int) -> None:
        # Its number is its group's, and not another's before it was waited for with its workers.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
