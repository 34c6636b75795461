"""The signals that end a command from outside."""

from __future__ import annotations

import signal
from typing import NoReturn


class EndedError(KeyboardInterrupt):
    """A signal from outside ends the command, as Ctrl-C does.

    A class of its own: when KeyboardInterrupt itself passes through code compiled from text, such
    as a dataclass, `python -m` ends by SIGINT and not with the exit code.
    """


def end(signal_number: int, frame: object) -> NoReturn:
    """Handle a signal: raise EndedError."""
    del signal_number, frame
    raise EndedError


def list_ending_signals() -> list[signal.Signals]:
    """Return SIGTERM and SIGHUP, but not SIGHUP where it is ignored, as under nohup."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [signal.SIGTERM, *([signal.SIGHUP] if hangs_up else [])]
