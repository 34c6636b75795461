"""Text is UTF-8 here whatever the machine's locale says, because models and plans are."""

from __future__ import annotations

import io
import locale
import os
import sys

_LOCALE = "C.UTF-8"


def adopt() -> None:
    """Make this process and those that it starts read and write UTF-8."""
    os.environ["LC_ALL"] = _LOCALE
    try:
        locale.setlocale(locale.LC_ALL, _LOCALE)
    except locale.Error:  # A C library without it, which no supported system has.
        return
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
