"""Follow a folder's rollout in a cluster, on the screen of a run on machines."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.operate.kubernetes import observe
from kimi_prov.operate.kubernetes.diagnosis import Baseline
from kimi_prov.runner.events import TaskFinished, TaskStarted
from kimi_prov.runner.progress import ProgressUpdate
from kimi_prov.show.live import screens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kimi_prov.operate.kubernetes.diagnosis import Snapshot, Status, Trouble
    from kimi_prov.operate.kubernetes.folder import Folder
    from kimi_prov.runner.run import Screen

POLL_INTERVAL_S = 5.0
# Limit of the wait for troubles that may pass by themselves: an image that is pulled again, a node
# that an autoscaler adds, a volume that another node releases.
TROUBLE_TIMEOUT_S = 180.0
AWAY_TIMEOUT_S = 300.0
_TICK_S = 0.2
_LOG_LINES = 12


@dataclass
class Follower:
    """Follows the cluster for one command, phase by phase."""

    folder: Folder
    screen: Screen
    before: Baseline = field(default_factory=Baseline)
    _phase: str = ""
    _began: float = 0.0

    def remember(self) -> Snapshot:
        """Record the state before anything is changed."""
        found = observe.take_snapshot(self.folder)
        self.before = Baseline.from_snapshot(found, time.time())
        return found

    def phase(self, name: str, task: str) -> None:
        """Begin a phase, after the end of the former one."""
        self.end("ok")
        self._phase, self._began = name, time.monotonic()
        self.screen.event(TaskStarted(self.folder.name, name, task))

    def wait(
        self, judge: Callable[[Snapshot, Baseline], Status], ends: str = "serving"
    ) -> Snapshot:
        """Wait until a state is reached. Raises UserError for a trouble that does not pass."""
        seen: dict[str, float] = {}
        away: float | None = None
        while True:
            try:
                found = observe.take_snapshot(self.folder)
                away = None
            except UserError as error:
                # The cluster goes on; only the connection to it is interrupted.
                now = time.monotonic()
                away = away or now
                if error.exit_code is not ExitCode.UNREACHABLE or now - away > AWAY_TIMEOUT_S:
                    self.end("failed")
                    raise
                self._show(f"{error.message}; trying again")
                self._pause()
                continue
            standing = judge(found, self.before)
            if standing.state == ends:
                return found
            if standing.state == "stopped" and standing.trouble is None:
                raise self._gone(standing)
            self._hold(standing.trouble, seen)
            self._show(self._line(found, standing))
            self._pause()

    def _gone(self, standing: Status) -> UserError:
        """End the phase: another user stopped or deleted the workload."""
        self.end("failed")
        return UserError(
            f"{self.folder.kubectl.where}: {self.folder.name} was stopped or deleted while it was "
            f"waited for: {standing.line}",
            fix=f"kimi-prov apply {clean_text.quote_word(self.folder.path)}",
            exit_code=ExitCode.FAILED,
        )

    def _hold(self, trouble: Trouble | None, seen: dict[str, float]) -> None:
        """Raise a trouble that will not pass, or has not passed in time."""
        if trouble is None:
            seen.clear()
            return
        since = seen.setdefault(trouble.key, time.monotonic())
        if trouble.waits and time.monotonic() - since < TROUBLE_TIMEOUT_S:
            return
        self.end("failed")
        trouble, told = observe.explain_trouble(self.folder, trouble)
        lines = [line for line in clean_text.clean_block(told).splitlines() if line.strip()]
        if lines:
            self.screen.say(
                f"the end of the log of {clean_text.clean_line((trouble.log or ('',))[0])}:"
            )
            for line in lines[-_LOG_LINES:]:
                self.screen.say(f"  | {clean_text.clean_line(line)[:300]}")
        raise observe.make_error(self.folder, trouble)

    def _line(self, found: Snapshot, standing: Status) -> str:
        if standing.trouble:
            return f"{standing.trouble.cause}; waiting"
        pods = found.fetching if self._phase == "weights" else found.pods
        told = observe.read_last_line(self.folder, list(pods))
        return told if told and self._phase == "weights" else f"{standing.line} {told}".strip()

    def _show(self, line: str) -> None:
        self.screen.progress(
            ProgressUpdate(self.folder.name, self._phase, clean_text.clean_line(line))
        )

    def _pause(self) -> None:
        until = time.monotonic() + POLL_INTERVAL_S
        while time.monotonic() < until:
            self.screen.tick()
            time.sleep(min(_TICK_S, POLL_INTERVAL_S))

    def end(self, status: Literal["ok", "failed"]) -> None:
        """End the present phase."""
        if self._phase:
            self.screen.event(
                TaskFinished(
                    self.folder.name,
                    self._phase,
                    "",
                    "",
                    status,
                    time.monotonic() - self._began,
                    {},
                )
            )


@contextmanager
def follow(folder: Folder, title: str) -> Iterator[Follower]:
    """Show the screen for the time of this context; the cluster goes on after Ctrl-C."""
    screen = screens.choose()
    screen.start(title)
    try:
        follower = Follower(folder, screen)
        yield follower
        follower.end("ok")
    except KeyboardInterrupt:
        screen.say("the cluster goes on with what it was given; the same command follows it again")
        raise
    finally:
        screen.stop()
