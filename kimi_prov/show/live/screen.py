"""The live screen: ended phases scroll up; below them is the present task of each host."""

from __future__ import annotations

import sys
import termios
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kimi_prov.contract import clean_text
from kimi_prov.contract.durations import format_duration
from kimi_prov.runner import progress
from kimi_prov.runner.events import Diff
from kimi_prov.show.live.phases import Phase, Tracker

if TYPE_CHECKING:
    from typing import TextIO

    from kimi_prov.runner.events import Event
    from kimi_prov.runner.progress import ProgressUpdate

_BAR = 20
_MARKS = {"done": ("✓", "green"), "failed": ("✗", "red"), "stopped": ("-", "yellow")}
_LOCAL_FLAGS = 3
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class LiveScreen:
    """Needs a terminal; stays within its width, and its height with many hosts."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False, soft_wrap=False)
        self._tracker = Tracker()
        self._live: Live | None = None
        self._terminal: list[Any] | None = None
        self._width = 4

    def start(self, title: str) -> None:
        """Open the live region."""
        self._console.print(_build_text(title, "bold"), overflow="ellipsis", no_wrap=True)
        self._hide_control_c()
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def event(self, event: Event) -> None:
        """Let an ended phase scroll up."""
        ended = self._tracker.follow(event)
        self._width = max([self._width, *(len(host) for host in self._tracker.current)])
        if ended:
            self._print_end(*ended)
        if isinstance(event, Diff):
            self.say(f"{event.host}:\n{event.text}")

    def progress(self, update: ProgressUpdate) -> None:
        """Store the progress for its bar."""
        self._tracker.progress(update)

    def tick(self) -> None:
        """Draw the region again."""
        if self._live:
            self._live.update(self._region(), refresh=True)

    def say(self, line: str) -> None:
        """Print a message above the region."""
        self._console.print(Text(clean_text.clean_block(line)))

    def stop(self) -> None:
        """Close the region, and print the phases that are still open."""
        if self._live:
            self._live.update(Text(""))
            self._live.stop()
            self._live = None
        if self._terminal is not None:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._terminal)
            self._terminal = None
        for host, phase in self._tracker.finish():
            self._print_end(host, phase)

    def _hide_control_c(self) -> None:
        """Keep the terminal from writing ^C into the region, which would move the region."""
        try:
            self._terminal = termios.tcgetattr(sys.stdin.fileno())
            quiet = termios.tcgetattr(sys.stdin.fileno())
            quiet[_LOCAL_FLAGS] &= ~termios.ECHOCTL
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, quiet)
        except (OSError, ValueError, termios.error):
            self._terminal = None

    def _print_end(self, host: str, phase: Phase) -> None:
        mark, style = _MARKS[phase.verdict]
        line = Text(f"{mark} ", style=style)
        line.append(f"{clean_text.clean_line(host):<{min(self._width, 24)}}  ", style="default")
        line.append(f"{clean_text.clean_line(phase.name):<12} ", style="default")
        line.append(f"{format_duration(phase.seconds):>8}", style="default")
        if phase.verdict == "stopped":
            line.append("  stopped", style="yellow")
        elif phase.changed:
            line.append(f"  {phase.changed} changed", style="yellow")
        self._console.print(line, overflow="ellipsis", no_wrap=True)

    def _region(self) -> RenderableType:
        """Draw each host in one line, and a bar under it where bytes are counted."""
        rows: list[RenderableType] = []
        room = max(2, self._console.height - 4)
        hosts = self._tracker.working()
        for number, (host, phase) in enumerate(hosts):
            lines = self._host(host, phase)
            if len(rows) + len(lines) > room - 1 and number < len(hosts) - 1:
                rows.append(Text(f"  and {len(hosts) - number} more hosts", style="dim"))
                break
            rows += lines
        return Group(*rows)

    def _host(self, host: str, phase: Phase) -> list[RenderableType]:
        frame = _FRAMES[int(time.monotonic() * 8) % len(_FRAMES)]
        update = phase.update
        now = (update.line if update and update.line else "") or phase.task
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(no_wrap=True, width=1)
        grid.add_column(no_wrap=True, overflow="ellipsis", max_width=24, width=min(self._width, 24))
        grid.add_column(no_wrap=True, overflow="ellipsis", width=11)
        grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        grid.add_column(no_wrap=True, justify="right")
        grid.add_row(
            Text(frame, style="cyan"),
            _build_text(host),
            _build_text(phase.name, "cyan"),
            _build_text(now),
            Text(format_duration(phase.seconds), style="dim"),
        )
        if update is None or not update.total_bytes:
            return [grid]
        return [grid, self._bar(update)]

    def _bar(self, update: ProgressUpdate) -> RenderableType:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=1)
        grid.add_column(width=_BAR)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        bar = ProgressBar(
            total=float(update.total_bytes or 1),
            completed=float(update.done_bytes or 0),
            width=_BAR,
        )
        grid.add_row("", bar, _build_text(f"{update.phase}: {progress.format_amounts(update)}"))
        return grid


def _build_text(said: str, style: str = "") -> Text:
    """Return clean text, in which rich interprets no markup; rich removes no escapes itself."""
    return Text(clean_text.clean_line(said), style=style)
