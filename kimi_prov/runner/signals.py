"""The signals that end a command from outside."""

from __future__ import annotations

import signal


def ending() -> list[signal.Signals]:
    """Return SIGTERM and SIGHUP; not SIGHUP where it is ignored, for nohup asks for that."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [signal.SIGTERM, *([signal.SIGHUP] if hangs_up else [])]
