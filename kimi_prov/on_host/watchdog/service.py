"""`watchdog` detects that an engine of this machine hangs, keeps evidence, and restarts it.

Runs until it is ended, or until its program was replaced: systemd starts it again. The decisions
are in classify.py; this module observes, asks, writes the bundle, restarts and logs.

Decides: when an engine hangs, and what happens then (the service).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import draining
from kimi_prov.on_host.engine import ready
from kimi_prov.on_host.system import plans
from kimi_prov.on_host.system.notify import Notifier
from kimi_prov.on_host.system.process import run
from kimi_prov.on_host.watchdog import bundles, memory_ends, observe, state
from kimi_prov.on_host.watchdog.classify import Limits, Question, Sample, Verdict, What, classify
from kimi_prov.on_host.watchdog.state import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.on_host.watchdog.observe import Engine, Looked

ASKER = "watchdog"
# Seconds for one read of the engine's metrics.
_METRICS_S = 5.0
_SYSTEMCTL_S = 60.0
_GOES_ON = (What.IDLE, What.WORKS, What.WAIT)


def main(argv: list[str]) -> int:
    """Watch until the program is replaced."""
    parser = argparse.ArgumentParser(prog="watchdog")
    parser.add_argument("--quiet", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--computing", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--ask", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--every", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--restarts", type=int, required=True, metavar="N", help="in an hour")
    parser.add_argument("--stacks", type=Path, metavar="PROGRAM")
    parser.add_argument("--only-look", action="store_true", help="for a group: it restarts itself")
    options = parser.parse_args(argv)
    limits = Limits(
        options.quiet, options.computing, options.ask, options.every, asks=not options.only_look
    )
    watchdog = Watchdog(Paths(), limits, options.restarts, options.stacks)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        return watchdog.run(Notifier.from_environment(os.environ))
    finally:
        # After this process ends, nothing would notice that the engine answers again.
        watchdog.give_back()


class Watchdog:
    """All engines of this machine, observed one after the other."""

    def __init__(
        self, paths: Paths, limits: Limits, restarts: int, stacks: Path | None = None
    ) -> None:
        self._paths, self._limits = paths, limits
        self._restarts, self._stacks = restarts, stacks
        self._record = Record(paths)
        self._watches: dict[str, _Watch] = {}
        self._said: dict[str, str] = {}

    def run(self, notifier: Notifier) -> int:
        """Observe again and again; return 0 once the program on the disk is another one."""
        program = _read_program_version(self._paths)
        while True:
            notifier.alive()
            began = time.monotonic()
            self.turn(notifier)
            calm = not any(watch.stalled for watch in self._watches.values())
            if calm and _read_program_version(self._paths) != program:
                print("the program was replaced: starting again", flush=True)
                return 0
            time.sleep(max(0.2, self._limits.every - (time.monotonic() - began)))

    def turn(self, notifier: Notifier) -> None:
        """Observe every engine of the present plan once, and do what is to be done."""
        plan = plans.read_machine_plan(self._paths.plan)
        found = observe.list_engines(plan)
        around = observe.observe_machine(self._paths, found)
        self._say_once("held", f"not watching: {around.held}" if around.held else "")
        names = [engine.unit for engine in found]
        self._watches = {unit: row for unit, row in self._watches.items() if unit in names}
        for engine in found:
            if engine.unit not in self._watches:
                last = self._record.last_of(engine.unit)
                self._watches[engine.unit] = _Watch(engine, self._limits, last)
            watch = self._watches[engine.unit]
            timeout_s = min(_METRICS_S, self._limits.every)
            looked = observe.observe_engine(engine, around, timeout_s, ours=watch.out)
            notifier.alive()
            if watch.has_changed(looked):
                self._tell_memory_end(engine.unit)
            self._act(watch, looked, plan, notifier)
        self._keep_record()
        self._publish({engine.unit: engine.index for engine in found})
        waits = [unit for unit, watch in self._watches.items() if watch.stalled]
        notifier.status(f"no step of {', '.join(waits)}" if waits else around.held or "all work")

    def give_back(self) -> None:
        """Make the proxy send requests again to all engines that were taken out."""
        for watch in self._watches.values():
            if watch.out:
                self._balance(watch, draining.READY)

    def _publish(self, index: Mapping[str, int]) -> None:
        stalled = {unit: watch.stalled for unit, watch in self._watches.items()}
        problem = ""
        try:
            state.publish(self._paths, self._record.metrics(stalled, index))
        except OSError as error:
            problem = f"the metrics cannot be written: {describe_error(error)}"
        self._say_once("metrics", problem)

    def _keep_record(self) -> None:
        """Store the state. On a full disk it stays in memory, and hangs are still handled."""
        problem = ""
        try:
            self._record.save()
        except OSError as error:
            problem = f"the state is not stored: {describe_error(error)}"
        self._say_once("record", problem)

    def _act(self, watch: _Watch, looked: Looked, plan: MachinePlan, notifier: Notifier) -> None:
        unit = watch.engine.unit
        verdict = watch.classify(looked)
        for took in watch.recoveries():
            self._record.served_again(unit, took)
            self._say(f"{unit} serves again, {took:.0f} s after its last step")
            self._balance(watch, draining.READY)
        for took in watch.answers():
            self._say(f"{unit} answered our question after {took:.0f} s: it makes progress")
        if verdict.what is What.ASK:
            if watch.ask(str(plan["model"]["served_names"][0]), verdict.still):
                self._say(f"{unit}: {verdict.why}: asking it for one token")
            self._record.probe(unit)
        elif verdict.what is What.HANGS and watch.left != looked.start:
            self._hangs(watch, looked, verdict, notifier)
        elif watch.out and looked.serves and not looked.held:
            # The proxy forgets this state when it is reloaded.
            if not looked.out:
                self._balance(watch, draining.OUT)
            if watch.ask_again(str(plan["model"]["served_names"][0])):
                self._record.probe(unit)

    def _tell_memory_end(self, unit: str) -> None:
        """Report it once if systemd has ended the engine by its memory limit."""
        at = memory_ends.find_last(unit)
        if at is not None and self._record.memory_ended(unit, at):
            self._say(
                f"{unit} was ended by its memory limit (MemoryMax) at {state.format_time(at)}: it "
                "took more than is planned; the rest of the machine kept its memory"
            )

    def _balance(self, watch: _Watch, state: str) -> None:
        """Make the proxy send requests to an engine again, or no more.

        When its last engine is out, the machine's own /health is 503, and a gateway before it sends
        requests to other machines.
        """
        problem = ""
        try:
            draining.set_state(self._paths, state, [watch.engine.index])
        except HostError as error:
            problem = f"{watch.engine.unit} cannot be made {state} at the proxy: {error.message}"
        self._say_once(f"balance of {watch.engine.unit}", problem)

    def _hangs(self, watch: _Watch, looked: Looked, verdict: Verdict, notifier: Notifier) -> None:
        unit, at, still_s = watch.engine.unit, time.time(), verdict.still
        self._say(f"{unit} hangs: {verdict.why}")
        # Before the bundle, which takes a minute: requests that come now would wait in vain.
        self._balance(watch, draining.OUT)
        bundle = self._save_bundle(watch, looked, verdict, at)
        notifier.alive()
        done = self._decide_restart(watch, looked, at)
        row = {"at": state.format_time(at), "time": at, "why": verdict.why, "done": done}
        row |= {"still_s": round(still_s, 1), "start": looked.start}
        row |= {"bundle": bundle.name if bundle else None}
        row |= {"cause_id": bundle.cause.id if bundle and bundle.cause else None}
        self._record.hang(unit, row)
        self._keep_record()
        watch.hangs(looked.start, still_s)
        if done == state.RESTARTED:
            self._restart(unit)

    def _save_bundle(
        self, watch: _Watch, looked: Looked, verdict: Verdict, at: float
    ) -> bundles.Bundle | None:
        hang = bundles.Hang(
            watch.engine.unit, looked.cgroup, verdict.why, verdict.still, watch.text, self._stacks
        )
        try:
            bundle = bundles.save_bundle(self._paths, hang, at)
        except (OSError, HostError) as error:
            self._say(f"nothing of it could be kept: {describe_error(error)}")
            return None
        without = f"; without {'; '.join(bundle.missing)}" if bundle.missing else ""
        self._say(f"evidence is stored in {layout.HANGS}/{bundle.name}{without}")
        if bundle.cause:
            self._say(f"its logs show the cause: {bundle.cause.title}; {bundle.cause.fix}")
        return bundle

    def _decide_restart(self, watch: _Watch, looked: Looked, at: float) -> str:
        """Return what is done about an engine that hangs; the reason where it is not restarted."""
        unit = watch.engine.unit
        if not self._limits.asks:
            self._say("the supervisor of its group restarts all of the group")
            return state.GROUP
        # Another run may have begun while the bundle was written.
        around = observe.observe_machine(self._paths, [watch.engine])
        now = observe.observe_engine(watch.engine, around, _METRICS_S, ours=True)
        if now.held or now.start != looked.start:
            self._say(f"it is left alone: {now.held or 'it was started again meanwhile'}")
            return state.LEFT
        before = self._record.restarts_since(unit, at - state.HOUR_S)
        if before >= self._restarts:
            self._say(
                f"it is left alone: {before} restarts in an hour did not help; look into the "
                f"bundles, and run  systemctl restart {unit}"
            )
            return state.LEFT
        self._say(f"restarting {unit} (restart {before + 1} of {self._restarts} in an hour)")
        return state.RESTARTED

    def _restart(self, unit: str) -> None:
        # Killed at once: it would not end in order, and the stop would wait for its whole limit. A
        # requested start does not count to the unit's limit of failed starts.
        run("systemctl", "kill", "--signal=SIGKILL", unit, timeout=_SYSTEMCTL_S)
        run("systemctl", "reset-failed", unit, timeout=_SYSTEMCTL_S)
        done = run("systemctl", "restart", "--no-block", unit, timeout=_SYSTEMCTL_S)
        if done.returncode != 0:
            self._say(f"it could not be restarted: {clean_text.clean_line(done.stderr)}")

    def _say_once(self, about: str, text: str) -> None:
        """Log the state of something where it has changed."""
        if text and text != self._said.get(about):
            self._say(text)
        self._said[about] = text

    @staticmethod
    def _say(text: str) -> None:
        print(clean_text.clean_line(text), flush=True)


class _Watch:
    """One engine: its samples, and our question to it. `last`: its last hang, of a former process.

    `left`: the start of the engine that was dealt with already. `stalled`: requests wait, and no
    step is made.
    """

    def __init__(
        self, engine: Engine, limits: Limits, last: Mapping[str, Any] | None = None
    ) -> None:
        self.engine = engine
        self.left = ""
        self.stalled = False
        self.text = ""
        # The start that was observed last, and whether it served.
        self._seen: tuple[str, bool] | None = None
        self._limits = limits
        most = (limits.computing + limits.ask) / limits.every + 10
        self._samples: deque[Sample] = deque(maxlen=int(most) + 1)
        self._lock = threading.Lock()
        self._question: Question | None = None
        self._answered = float("-inf")
        # When its last step was made, while it hangs.
        self._since: float | None = None
        # When the hang was detected: an answer after this time ends it.
        self._left_at = float("-inf")
        self._told: list[float] = []
        self._answers: list[float] = []
        if last and last.get("served_again_s") is None:
            ago = time.time() - float(last["time"]) + float(last["still_s"])
            self.left, self._since = str(last["start"]), time.monotonic() - ago

    def has_changed(self, looked: Looked) -> bool:
        """Return whether the engine has ended, or was started, since the last time."""
        before, self._seen = self._seen, (looked.start, looked.serves)
        return before != self._seen

    def classify(self, looked: Looked) -> Verdict:
        """Add a sample, and decide."""
        self.text = looked.text or self.text
        with self._lock:
            question, answered = self._question, self._answered
        sample = Sample(
            at=time.monotonic(),
            start=looked.start,
            held=looked.held,
            steps=looked.steps,
            waits=looked.waits,
            cpu=looked.cpu,
            question=question,
            answered=answered,
        )
        self._samples.append(sample)
        verdict = classify(list(self._samples), self._limits)
        if self._goes_on(looked, verdict, answered):
            # If it hung and made progress by itself, the next hang counts as a new one.
            self.left = "" if looked.start == self.left else self.left
            if self._since is not None:
                self._told.append(time.monotonic() - self._since)
                self._since = None
        suspected = verdict.what in (What.ASK, What.ASKED, What.HANGS)
        self.stalled = suspected or self._since is not None
        return verdict

    def _goes_on(self, looked: Looked, verdict: Verdict, answered: float) -> bool:
        """Return whether an engine makes progress: it made a step, or answered a chat.

        That no request waits for it says nothing: the proxy sends it none. Where the supervisor of
        a group asks, the engine counts as well once no request waits. A start that systemd calls
        active has answered a chat, even if somebody works on the machine meanwhile.
        """
        if looked.start != self.left:
            anew = self.out and looked.serves and bool(looked.held)
            return anew or (verdict.what in _GOES_ON and looked.steps is not None)
        signs = (What.WORKS,) if self._limits.asks else (What.IDLE, What.WORKS)
        stepped = verdict.what in signs and looked.steps is not None
        return stepped or (self.out and answered > self._left_at)

    @property
    def out(self) -> bool:
        """Return whether it hung and made no progress since: it is sent no requests."""
        return self._since is not None

    def hangs(self, start: str, still_s: float) -> None:
        """Record that this start of the engine was dealt with."""
        self._left_at = time.monotonic()
        self.left, self._since, self.stalled = start, self._left_at - still_s, True

    def recoveries(self) -> list[float]:
        """Return, once each, after how many seconds without a step it made progress."""
        told, self._told = self._told, []
        return told

    def answers(self) -> list[float]:
        """Return, once each, after how many seconds our questions were answered."""
        with self._lock:
            told, self._answers = self._answers, []
        return told

    def ask(self, model: str, still_s: float) -> bool:
        """Ask for one token, in a thread; return whether it is the first time since a step.

        `still_s`: how long no step was made. A question that was refused is asked again, and counts
        from the first time.
        """
        now = time.monotonic()
        with self._lock:
            old = self._question
            anew = old is None or old.since < now - still_s
            asked = Question(now) if old is None or anew else Question(old.since)
            self._question = asked
        threading.Thread(target=self._ask, args=[asked, model], daemon=True).start()
        return anew

    def ask_again(self, model: str) -> bool:
        """Ask an engine that hung again; return False where the last question still runs."""
        if not self._limits.asks:
            return False
        with self._lock:
            waits = self._question is not None and self._question.pending
        if not waits:
            self.ask(model, 0.0)
        return not waits

    def _ask(self, asked: Question, model: str) -> None:
        problem = ready.request_token(
            self.engine.port, model, timeout_s=self._limits.ask, asker=ASKER
        )
        ended = time.monotonic()
        with self._lock:
            if self._question is not asked:
                return
            if problem is None:
                self._question, self._answered = None, ended
                self._answers.append(ended - asked.since)
            else:
                self._question = replace(
                    asked, pending=False, problem=clean_text.clean_line(problem)
                )


def _read_program_version(paths: Paths) -> tuple[int, int]:
    """Return the digest that distinguishes the program on the disk from others."""
    try:
        about = os.stat(str(paths.locate(layout.ZIPAPP)))
    except OSError:
        return 0, 0
    return about.st_ino, about.st_mtime_ns
