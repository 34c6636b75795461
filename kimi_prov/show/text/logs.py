"""Merge the journals of many machines by time: the order, the screen and the forms.

Decides: the order and form of `logs`.
Applied by: playbooks/logs.yml.
Held by: tests/unit/show/text/test_log_lines.py, tests/component/on_host/system/test_journals.py,
  tests/unit/commands/test_logs_command.py.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text, unit_names
from kimi_prov.runner.events import TaskFinished
from kimi_prov.show.output import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kimi_prov.runner.events import Event
    from kimi_prov.runner.progress import LogEntry, ProgressUpdate
    from kimi_prov.show.output import Format

SCHEMA = "kimi-prov/logs/v1"
# syslog's priorities: at least a warning, at least an error.
_ERROR, _WARNING = 3, 4
_RED, _YELLOW, _CYAN, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[36m", "\x1b[0m"
_NARROWEST = 40


@dataclass(frozen=True, order=True)
class Line:
    """One line of one machine; `order` is its position among lines of the same time."""

    time_us: int
    host: str
    order: int
    entry: LogEntry = field(compare=False)


class Timeline:
    """Sorts lines of several machines by time without waiting for the slowest.

    A line is held for `hold_s` seconds after it arrived, the first ones for `first_s`: lines that
    arrive within that time are in order, later ones are written when they arrive.
    """

    def __init__(self, hold_s: float, first_s: float) -> None:
        self._hold_s, self._first_s = hold_s, first_s
        self._held: list[tuple[float, Line]] = []
        self._count = 0
        self._started: float | None = None

    def add(self, host: str, entries: Iterable[LogEntry], now: float) -> None:
        """Add lines that arrived at `now`."""
        for entry in entries:
            self._count += 1
            self._held.append((now, Line(entry.time_us, host, self._count, entry)))
            self._started = now if self._started is None else self._started

    def due(self, now: float) -> list[Line]:
        """Return the lines that were held long enough, sorted by time."""
        if self._started is None or now - self._started < self._first_s:
            return []
        ready = [line for came, line in self._held if now - came >= self._hold_s]
        self._held = [row for row in self._held if now - row[0] < self._hold_s]
        return sorted(ready)

    def rest(self) -> list[Line]:
        """Return all lines that are still held."""
        held, self._held = self._held, []
        return sorted(line for _, line in held)


def build_document(line: Line) -> dict[str, object]:
    """Return a line as the JSON document that `--format json` writes, one on each line."""
    return {
        "schema": SCHEMA,
        "time": _get_time(line).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "host": line.host,
        "unit": line.entry.unit,
        "priority": line.entry.priority,
        "message": line.entry.message,
    }


def format_line(line: Line, *, width: int | None = None, colour: bool = False) -> str:
    """Write a line as text: local time, host, unit, message.

    `width`: columns of a terminal, in which a long line is wrapped; None for one line.
    """
    at = _get_time(line).astimezone().strftime("%m-%d %H:%M:%S")
    host, unit = (
        clean_text.clean_line(line.host),
        clean_text.clean_line(unit_names.shorten(line.entry.unit)),
    )
    shown = f"{at} {host} {unit}: {clean_text.clean_row(line.entry.message)}".rstrip()
    rows = [shown]
    if width is not None and len(shown) > width:
        rows = textwrap.wrap(
            shown, max(width, _NARROWEST), subsequent_indent="    ", break_on_hyphens=False
        )
    if colour:
        priority = line.entry.priority
        mark = _CYAN if priority is None or priority > _WARNING else _YELLOW
        mark = _RED if priority is not None and priority <= _ERROR else mark
        head = f"{at} {host} {unit}:"
        if rows[0].startswith(head):
            rows[0] = f"{mark}{head}{_PLAIN}{rows[0][len(head) :]}"
    return "\n".join(rows)


def _get_time(line: Line) -> datetime:
    return datetime.fromtimestamp(line.time_us / 1e6, UTC)


class LogScreen:
    """Passes lines to `write` in order; errors go to standard error.

    `terminal`: wrap the lines for a person; `colour` needs a terminal.
    """

    def __init__(
        self,
        form: Format,
        timeline: Timeline,
        write: Callable[[str], None],
        *,
        terminal: bool = False,
        colour: bool = False,
    ) -> None:
        self._form, self._timeline, self._give = form, timeline, write
        self._terminal, self._colour = terminal, terminal and colour

    def start(self, title: str) -> None:
        """Write no title: the lines are the answer."""

    def event(self, event: Event) -> None:
        """Report at once a host that will not answer, while others are followed."""
        if isinstance(event, TaskFinished) and event.status in {"unreachable", "failed"}:
            say(clean_text.clean_row(f"{event.host}: no lines come from it any more"))

    def progress(self, update: ProgressUpdate) -> None:
        """Add a host's lines, or write its message."""
        self._timeline.add(update.host, update.entries, time.monotonic())
        if update.line:
            say(clean_text.clean_row(f"{update.host}: {update.line}"))

    def tick(self) -> None:
        """Write the lines that were held long enough."""
        self._write(self._timeline.due(time.monotonic()))

    def say(self, line: str) -> None:
        """Write a message."""
        say(line)

    def stop(self) -> None:
        """Write the remaining lines."""
        self._write(self._timeline.rest())

    def _write(self, lines: list[Line]) -> None:
        if lines:
            self._give("".join(f"{self._written(line)}\n" for line in lines))

    def _written(self, line: Line) -> str:
        if self._form == "json":
            return clean_text.as_json(build_document(line), indent=None)
        width = shutil.get_terminal_size().columns if self._terminal else None
        return format_line(line, width=width, colour=self._colour)


def write_lines(lines: str) -> None:
    """Write clean lines, which may hold our own colours, at once."""
    sys.stdout.write(lines)
    sys.stdout.flush()


def has_colours() -> bool:
    """Whether standard output is a terminal with colours, and NO_COLOR is not set."""
    term = os.environ.get("TERM", "dumb")
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and term not in {"dumb", "unknown"}
    )
