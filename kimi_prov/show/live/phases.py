"""Track the phase of each host, and since when it lasts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kimi_prov.contract.durations import format_duration
from kimi_prov.runner.events import TaskFinished, TaskStarted

if TYPE_CHECKING:
    from kimi_prov.runner.events import Event
    from kimi_prov.runner.progress import ProgressUpdate


class Phase:
    """An uninterrupted time of one host in one phase."""

    def __init__(self, name: str, task: str) -> None:
        self.name = name
        self.task = task
        self.started = time.monotonic()
        self.task_started = self.started
        self.changed = 0
        self.failed = False
        self.update: ProgressUpdate | None = None
        self.ended: float | None = None

    @property
    def verdict(self) -> str:
        """The phase's result; stopped, if its last task never ended."""
        if self.failed:
            return "failed"
        return "stopped" if self.ended is None else "done"

    @property
    def seconds(self) -> float:
        """Seconds until now, or until its last task ended."""
        return (self.ended or time.monotonic()) - self.started


class Tracker:
    """Groups tasks into phases: a phase ends when its host goes on or fails."""

    def __init__(self) -> None:
        self.current: dict[str, Phase] = {}
        self._failed: set[str] = set()

    def follow(self, event: Event) -> tuple[str, Phase] | None:
        """Handle an event; return the host and the phase that the event ended, if any."""
        ended = None
        if isinstance(event, TaskStarted):
            now = self.current.get(event.host)
            if now is None or now.name != event.phase:
                if now is not None and now.name != "other":
                    ended = (event.host, now)
                self.current[event.host] = Phase(event.phase, event.task)
            else:
                now.task, now.task_started, now.ended = event.task, time.monotonic(), None
        elif isinstance(event, TaskFinished) and event.host in self.current:
            phase = self.current[event.host]
            phase.changed += event.status == "changed"
            phase.ended = time.monotonic()
            if event.status != "skipped":
                phase.update = None
            if event.status in {"failed", "unreachable"} and not event.ignored:
                phase.failed = True
                self._failed.add(event.host)
                del self.current[event.host]
                ended = None if phase.name == "other" else (event.host, phase)
        return ended

    def working(self) -> list[tuple[str, Phase]]:
        """Return the phases to show as running.

        A host that failed is shown only while it runs tasks that clean up.
        """
        return [
            (host, phase)
            for host, phase in self.current.items()
            if phase.ended is None or host not in self._failed
        ]

    def progress(self, update: ProgressUpdate) -> None:
        """Store the progress of long work."""
        if update.host in self.current:
            self.current[update.host].update = update

    def finish(self) -> list[tuple[str, Phase]]:
        """Return the phases that are still open."""
        left = [(host, s) for host, s in self.current.items() if s.name != "other"]
        self.current = {}
        return left


def format_phase(host: str, phase: Phase, width: int) -> str:
    """Write one ended phase as a line."""
    count = f", {phase.changed} changed" if phase.changed else ""
    took = format_duration(phase.seconds)
    return f"{host:<{width}}  {phase.name:<12} {phase.verdict} in {took}{count}"
