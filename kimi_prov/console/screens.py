"""What a person sees while a run goes on: plain lines, or a live region on a terminal."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from kimi_prov.runner import progress
from kimi_prov.runner.events import Began, Diff, Ended, Event

if TYPE_CHECKING:
    from typing import TextIO

    from kimi_prov.runner.progress import Update
    from kimi_prov.runner.run import Screen

_QUIET_S = 10.0
_UPDATE_S = 5.0


def choose(stream: TextIO | None = None) -> Screen:
    """Return the live screen on a terminal that can show it, else the plain one."""
    stream = stream or sys.stderr
    if stream.isatty() and os.environ.get("TERM", "dumb") not in {"dumb", "unknown"}:
        from kimi_prov.console.live import LiveScreen  # noqa: PLC0415 - rich is slow

        return LiveScreen(stream)
    return PlainScreen(stream)


class Stretch:
    """An uninterrupted time of one host in one phase."""

    def __init__(self, phase: str, task: str) -> None:
        self.phase = phase
        self.task = task
        self.started = time.monotonic()
        self.task_started = self.started
        self.changed = 0
        self.failed = False
        self.update: Update | None = None
        self.ended: float | None = None

    @property
    def verdict(self) -> str:
        """How it ended; stopped, where its last task never came to an end."""
        if self.failed:
            return "failed"
        return "stopped" if self.ended is None else "done"

    @property
    def seconds(self) -> float:
        """How long it has lasted, or lasted until its last task ended."""
        return (self.ended or time.monotonic()) - self.started


class Tracker:
    """Turns tasks into stretches: tells which one ended when a host goes on to the next."""

    def __init__(self) -> None:
        self.current: dict[str, Stretch] = {}

    def take(self, event: Event) -> tuple[str, Stretch] | None:
        """Take an event in; return the host and the stretch that it ended, if it did."""
        ended = None
        if isinstance(event, Began):
            now = self.current.get(event.host)
            if now is None or now.phase != event.phase:
                if now is not None and now.phase != "other":
                    ended = (event.host, now)
                self.current[event.host] = Stretch(event.phase, event.task)
            else:
                now.task, now.task_started, now.ended = event.task, time.monotonic(), None
        elif isinstance(event, Ended) and event.host in self.current:
            stretch = self.current[event.host]
            stretch.changed += event.status == "changed"
            stretch.ended = time.monotonic()
            stretch.failed |= event.status in {"failed", "unreachable"} and not event.ignored
            if stretch.failed or event.status != "skipped":
                stretch.update = None
        return ended

    def progress(self, update: Update) -> None:
        """Remember how far long work is."""
        if update.host in self.current:
            self.current[update.host].update = update

    def finish(self) -> list[tuple[str, Stretch]]:
        """Return what was still open."""
        left = [(host, s) for host, s in self.current.items() if s.phase != "other"]
        self.current = {}
        return left


def ending(host: str, stretch: Stretch, width: int) -> str:
    """Write one ended stretch as a line."""
    count = f", {stretch.changed} changed" if stretch.changed else ""
    took = progress.duration(stretch.seconds)
    return f"{host:<{width}}  {stretch.phase:<12} {stretch.verdict} in {took}{count}"


class PlainScreen:
    """Whole lines, no control codes: for logs, pipes and dumb terminals."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._tracker = Tracker()
        self._spoken: dict[str, float] = {}
        self._width = 0

    def start(self, title: str) -> None:
        """Say what begins."""
        self.say(title)

    def event(self, event: Event) -> None:
        """Write a line for each phase that a host ends, and what changed in files."""
        ended = self._tracker.take(event)
        if ended:
            self._line(ended[0], ending(*ended, self._width))
        if isinstance(event, Began):
            self._width = max(self._width, len(event.host))
            self._spoken.setdefault(event.host, time.monotonic())
        elif isinstance(event, Diff):
            self.say(f"{event.host}:\n{event.text}")

    def progress(self, update: Update) -> None:
        """Write how far it is, every few seconds."""
        self._tracker.progress(update)
        if time.monotonic() - self._spoken.get(update.host, 0.0) >= _UPDATE_S:
            self._line(update.host, progress.sentence(update))

    def tick(self) -> None:
        """Say what a host is at, when it has been silent for long."""
        for host, stretch in self._tracker.current.items():
            if time.monotonic() - self._spoken.get(host, 0.0) >= _QUIET_S:
                took = progress.duration(time.monotonic() - stretch.task_started)
                self._line(
                    host, f"{host:<{self._width}}  {stretch.phase:<12} {stretch.task} ({took})"
                )

    def say(self, line: str) -> None:
        """Write one line."""
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def stop(self) -> None:
        """Write what was still open."""
        for host, stretch in self._tracker.finish():
            self._line(host, ending(host, stretch, self._width))

    def _line(self, host: str, text: str) -> None:
        self._spoken[host] = time.monotonic()
        self.say(text)
