"""When systemd last ended a unit by its memory limit, as its own message in the journal says.

The unit's state forgets it with the next start. A program in the unit cannot write this message:
the journal itself names the sender.
"""

from __future__ import annotations

from kimi_prov.on_host.system.process import run

_TIMEOUT_S = 30.0
_MAX_DIGITS = 10


def find_last(unit: str) -> float | None:
    """Return the time of the last end of a unit by its memory limit, in seconds since 1970."""
    fields = ("_PID=1", f"UNIT={unit}", "UNIT_RESULT=oom-kill")
    # Not `--output=json`: it would carry whatever stands beside the time.
    line = ["journalctl", "--quiet", "--no-pager", "--reverse", "--lines=1"]
    text = run(*line, "--output=short-unix", *fields, timeout=_TIMEOUT_S).stdout
    seconds = text.split(".", 1)[0]
    is_time = seconds.isascii() and seconds.isdigit() and len(seconds) <= _MAX_DIGITS
    return float(seconds) if is_time else None
