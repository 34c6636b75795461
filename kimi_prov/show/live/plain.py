"""The plain screen: lines for logs, pipes and simple terminals."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.contract.durations import format_duration
from kimi_prov.runner import progress
from kimi_prov.runner.events import Diff, TaskStarted
from kimi_prov.show.live.phases import Tracker, format_phase

if TYPE_CHECKING:
    from typing import TextIO

    from kimi_prov.runner.events import Event
    from kimi_prov.runner.progress import ProgressUpdate

_QUIET_S = 10.0
_UPDATE_S = 5.0


class PlainScreen:
    """Whole lines, no control codes: for logs, pipes and dumb terminals."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._tracker = Tracker()
        self._last_line: dict[str, float] = {}
        self._width = 0

    def start(self, title: str) -> None:
        """Write the title."""
        self.say(title)

    def event(self, event: Event) -> None:
        """Write a line for each phase that a host ends, and changes in files."""
        ended = self._tracker.follow(event)
        if ended:
            self._line(ended[0], format_phase(*ended, self._width))
        if isinstance(event, TaskStarted):
            self._width = max(self._width, len(event.host))
            self._last_line.setdefault(event.host, time.monotonic())
        elif isinstance(event, Diff):
            self.say(f"{event.host}:\n{event.text}")

    def progress(self, update: ProgressUpdate) -> None:
        """Write the progress every few seconds."""
        self._tracker.progress(update)
        if time.monotonic() - self._last_line.get(update.host, 0.0) >= _UPDATE_S:
            self._line(update.host, progress.format_update(update))

    def tick(self) -> None:
        """Write the present task of a host that has been silent for long."""
        for host, phase in self._tracker.working():
            if time.monotonic() - self._last_line.get(host, 0.0) >= _QUIET_S:
                took = format_duration(time.monotonic() - phase.task_started)
                self._line(host, f"{host:<{self._width}}  {phase.name:<12} {phase.task} ({took})")

    def say(self, line: str) -> None:
        """Write a message, clean."""
        self._stream.write(f"{clean_text.clean_block(line)}\n")
        self._stream.flush()

    def stop(self) -> None:
        """Write the phases that are still open."""
        for host, phase in self._tracker.finish():
            self._line(host, format_phase(host, phase, self._width))

    def _line(self, host: str, text: str) -> None:
        self._last_line[host] = time.monotonic()
        self.say(clean_text.clean_row(text))
