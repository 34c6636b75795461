"""Waiting for what happens by itself: by its condition, with a bound that only a hang reaches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Seconds that nothing here takes, on a machine with much else to do.
HANGS_S = 120.0


def until(condition: Callable[[], object], hangs_s: float = HANGS_S, every_s: float = 0.05) -> bool:
    """Wait until a condition holds; False when it never did.

    `every_s`: seconds between two looks, where a look takes much itself.
    """
    end = time.monotonic() + hangs_s
    while not (met := bool(condition())) and time.monotonic() < end:
        time.sleep(every_s)
    return met
