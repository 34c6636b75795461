"""The signals that end a command from outside."""

from __future__ import annotations

import signal
from typing import NoReturn


class EndedError(KeyboardInterrupt):
    """A signal from outside ends the command, as Ctrl-C does.

    Where KeyboardInterrupt itself has gone through code that is made of text, as a dataclass is,
    `python -m` ends by SIGINT whatever the exit code.
    """


def end(signal_number: int, frame: object) -> NoReturn:
    """Handle a signal: raise EndedError."""
    del signal_number, frame
    raise EndedError


def list_ending_signals() -> list[signal.Signals]:
    """Return SIGTERM and SIGHUP; not SIGHUP where it is ignored, for nohup asks for that."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [signal.SIGTERM, *([signal.SIGHUP] if hangs_up else [])]
