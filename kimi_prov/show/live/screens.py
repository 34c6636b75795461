"""Choose the screen of a run: plain lines, or a live region on a terminal."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from kimi_prov.show.live.plain import PlainScreen

if TYPE_CHECKING:
    from typing import TextIO

    from kimi_prov.runner.run import Screen


def choose(stream: TextIO | None = None) -> Screen:
    """Return the live screen on a terminal that can show it, else the plain one."""
    stream = stream or sys.stderr
    if stream.isatty() and os.environ.get("TERM", "dumb") not in {"dumb", "unknown"}:
        from kimi_prov.show.live.screen import LiveScreen  # noqa: PLC0415 - rich is slow

        return LiveScreen(stream)
    return PlainScreen(stream)
