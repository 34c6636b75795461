"""The screen of `status --watch`: drawn anew each time; without a terminal, lines.

Decides: what `status` samples of this moment (the screen of `--watch`).
"""

from __future__ import annotations

import os
import shutil
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.runner.events import TaskFinished
from kimi_prov.show.output import say
from kimi_prov.show.text import activity
from kimi_prov.show.text.lines import WIDTH, format_entry, format_head

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

    from kimi_prov.runner.events import Event
    from kimi_prov.runner.progress import ProgressUpdate

# Alternate screen without a cursor, and back; cursor home; clear to the end of the line, and of
# the screen.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"


def is_drawable(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can be drawn on."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in {"dumb", "unknown"}


class WatchScreen:
    """Shows the latest status of each host. `every_s`: seconds between two, for its text."""

    def __init__(self, stream: TextIO, every_s: float, *, terminal: bool) -> None:
        self._stream, self._every_s, self._terminal = stream, every_s, terminal
        self._hosts: dict[str, tuple[datetime, Mapping[str, Any]]] = {}
        self._size = (0, 0)
        self._drawn = self._open = False

    def start(self, title: str) -> None:
        """Draw on the terminal's alternate screen."""
        del title
        if self._terminal:
            self._write(_ENTER + _HOME + _CLEAR_REST + "looking ...")
            self._open = True

    def event(self, event: Event) -> None:
        """Report a host that will not answer any more, while others are watched."""
        if isinstance(event, TaskFinished) and event.status in {"unreachable", "failed"}:
            away = {"detail": "it is not watched any more", "provisioned": False}
            self._update(event.host, away)

    def progress(self, update: ProgressUpdate) -> None:
        """Show a status of a host."""
        if update.document is not None:
            self._update(update.host, update.document)

    def _update(self, host: str, document: Mapping[str, Any]) -> None:
        self._hosts[host] = datetime.now().astimezone(), document
        self._drawn = False
        if not self._terminal:
            at = self._hosts[host][0]
            self._write(
                clean_text.clean_row(f"{at:%H:%M:%S} {host}: {activity.format_brief(document)}")
                + "\n"
            )

    def tick(self) -> None:
        """Draw changes, or everything if the terminal's size has changed."""
        size = tuple(shutil.get_terminal_size())
        if self._open and self._hosts and (not self._drawn or size != self._size):
            self._size, self._drawn = (size[0], size[1]), True
            rows = cut_to_size(self._lines(), *self._size)
            self._write(_HOME + "".join(f"{row}{_CLEAR_LINE}\r\n" for row in rows[:-1]))
            self._write(f"{rows[-1]}{_CLEAR_LINE}{_CLEAR_REST}")

    def _lines(self) -> list[str]:
        found = [f"every {self._every_s:g} s; Ctrl-C ends it"]
        for host, (at, document) in self._hosts.items():
            found += ["", *format_host(host, f"{at:%H:%M:%S}", document)]
        return found

    def say(self, line: str) -> None:
        """Show a message beside the screen."""
        if not self._open:
            say(line)

    def stop(self) -> None:
        """Give the terminal its screen back, with the last screen under what was there."""
        if self._open:
            self._open = False
            self._write(_LEAVE)
            if self._hosts:
                self._write("\n".join(self._lines()[2:]) + "\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def format_host(host: str, at: str, document: Mapping[str, Any]) -> list[str]:
    """Write one host's present state in lines of 80 columns at most."""
    lines = format_head(host, f"{document['detail']}  {at}")
    if not document.get("provisioned"):
        return lines
    memory = document.get("memory")
    if memory:
        free = (
            f"{format_bytes(memory['host_available_bytes'])} of "
            f"{format_bytes(memory['host_total_bytes'])}"
        )
        lines += format_entry("memory", f"{free} available")
    return lines + activity.format_lines(document, known=True)


def cut_to_size(lines: list[str], columns: int, rows: int) -> list[str]:
    """Cut lines to a terminal's size; lines without room are counted."""
    width = max(1, min(columns, WIDTH if columns >= WIDTH else columns))
    cut = [line[:width] for line in lines]
    if len(cut) <= rows:
        return cut
    most = max(1, rows - 1)
    return [*cut[:most], f"... {len(cut) - most} more lines"[:width]]
