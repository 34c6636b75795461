"""Waiting for what happens by itself: by its condition, with a bound that only a hang reaches."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

# Seconds that nothing here takes, on a machine with much else to do.
HANGS_S = 120.0


def until(condition: Callable[[], object], hangs_s: float = HANGS_S) -> bool:
    """Wait until a condition holds; False when it never did."""
    end = time.monotonic() + hangs_s
    while not (met := bool(condition())) and time.monotonic() < end:
        time.sleep(0.05)
    return met


def lines_until(stream: TextIO, ends: Callable[[str], bool], hangs_s: float = HANGS_S) -> list[str]:
    """Read lines up to the one that ends them; fewer where that one never came."""
    found: list[str] = []

    def read() -> None:
        for line in stream:
            found.append(line)
            if ends(line):
                return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(hangs_s)
    return found
