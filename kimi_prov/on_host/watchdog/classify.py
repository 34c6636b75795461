"""Decides what is done about an engine, from samples of its state, without effects.

`/health` of an engine says no more than that its web server runs. So an engine is suspected when a
request waits for it and it makes no step for longer than the plan's slowest step takes. Then it is
asked for one token; it hangs when the token does not come in its time either, and still no step was
made. An engine that computes on the CPU may process a long prompt as one step: while it computes,
it has that step's time. Times are in seconds of a monotonic clock.

Decides: when an engine hangs, and what happens then.
Applied by: roles/watchdog.
Held by: tests/unit/on_host/watchdog/test_judge.py,
  tests/component/on_host/watchdog/test_service.py,
  tests/unit/planner/service/test_watchdog_plan.py, tests/lab/test_watchdog.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Cores in use above which an engine is known to compute: an engine whose worker stands still was
# measured at 0.003, one that computes at a whole core.
_COMPUTES = 0.1


class What(Enum):
    """What is to be done.

    QUIET: nothing is decided now. IDLE: no request waits. WORKS: the engine makes steps. WAIT: it
    makes none, but not for long enough. ASK: ask for a token now. ASKED: wait for the answer.
    HANGS: it makes no progress.
    """

    QUIET, IDLE, WORKS, WAIT, ASK, ASKED, HANGS = range(7)


@dataclass(frozen=True)
class Limits:
    """Seconds. `quiet`: without a step, before it is asked; `ask`: for the answer.

    `computing`: in place of `quiet`, while its processes use the CPU. `every`: between two samples.
    `asks`: whether the watchdog asks it at all; where a group's supervisor asks, it hangs after
    `quiet`.
    """

    quiet: float
    computing: float
    ask: float
    every: float
    asks: bool = True

    @property
    def gap(self) -> float:
        """Return after how many seconds the time between two samples counts as unknown."""
        return 3 * self.every + self.quiet / 2


@dataclass(frozen=True)
class Question:
    """Our own question: when it was asked first, and whether an answer may still come.

    `problem`: why the last question had no answer.
    """

    since: float
    pending: bool = True
    problem: str = ""


@dataclass(frozen=True)
class Sample:
    """One sample of an engine.

    `start` identifies its present start, empty where it does not serve. `held`: why nothing is
    decided now. `steps`: the counters that its steps change, None where it did not answer. `waits`:
    the number of requests that wait for the engine, in it or in the proxy before it. `cpu`: seconds
    of CPU that its processes have used since their start. `question`: ours, without an answer so
    far; `answered`: when the last one was answered.
    """

    at: float
    start: str
    held: str = ""
    steps: Mapping[str, float] | None = None
    waits: int = 0
    cpu: float = 0.0
    question: Question | None = None
    answered: float = float("-inf")


@dataclass(frozen=True)
class Verdict:
    """What is to be done, why, and for how many seconds no step was made."""

    what: What
    why: str = ""
    still: float = 0.0


def classify(samples: Sequence[Sample], limits: Limits) -> Verdict:
    """Decide about an engine by its samples, the oldest first; the last one is the present."""
    now = samples[-1]
    if now.held:
        return Verdict(What.QUIET, now.held)
    first = _find_first_still(samples, limits)
    if first is None:
        return Verdict(What.IDLE)
    if _has_moved(samples):
        return Verdict(What.WORKS)
    return _classify_still(samples, first, limits)


def _has_moved(samples: Sequence[Sample]) -> bool:
    """Return whether a step was made between the last two samples, if they can be compared."""
    before, now = samples[-2:] if len(samples) > 1 else (samples[-1], samples[-1])
    known = before.steps is not None and now.steps is not None
    return known and before.start == now.start and before.steps != now.steps


def _classify_still(samples: Sequence[Sample], first: Sample, limits: Limits) -> Verdict:
    """Decide about an engine that has made no step since the sample `first`."""
    now = samples[-1]
    still = now.at - first.at
    why = _describe_so_far(now, still)
    if still < (limits.computing if _is_computing(samples, first, limits) else limits.quiet):
        return Verdict(What.WAIT, why, still)
    if not limits.asks:
        return Verdict(What.HANGS, why, still)
    asked = now.question if now.question and now.question.since >= first.at else None
    if asked is None:
        return Verdict(What.ASK, why, still)
    waited = now.at - asked.since
    if waited >= limits.ask:
        problem = f" ({asked.problem})" if asked.problem else ""
        why += f", and no answer to our own question for {waited:.0f} s{problem}"
        return Verdict(What.HANGS, why, still)
    return Verdict(What.ASKED if asked.pending else What.ASK, why, still)


def _is_computing(samples: Sequence[Sample], first: Sample, limits: Limits) -> bool:
    """Return whether an engine without a step has used the CPU in the last `quiet` seconds.

    Only that time counts: an engine may hang after it computed all that it was given.
    """
    now = samples[-1]
    until = max(first.at, now.at - limits.quiet)
    since = next(sample for sample in reversed(samples) if sample.at <= until)
    return now.cpu - since.cpu >= _COMPUTES * (now.at - since.at) > 0


def _describe_so_far(now: Sample, still: float) -> str:
    if now.steps is None:
        return f"it reports no steps for {still:.0f} s"
    requests = "request waits" if now.waits == 1 else "requests wait"
    return f"no step for {still:.0f} s while {now.waits} {requests} or run"


def _is_suspect(sample: Sample) -> bool:
    """Return whether a request waits, or a serving engine reports nothing at all."""
    return sample.waits > 0 or sample.steps is None


def _find_first_still(samples: Sequence[Sample], limits: Limits) -> Sample | None:
    """Return the sample since which requests wait without a step; None where none waits now.

    A sample that was held, of another start or long before the next one ends that time: nothing is
    known of the time before it. An answer to our own question ends it too.
    """
    first = now = samples[-1]
    if not _is_suspect(now):
        return None
    steps = now.steps
    for sample in reversed(samples[:-1]):
        apart = first.at - sample.at > limits.gap
        if apart or sample.held or sample.start != now.start or not _is_suspect(sample):
            break
        if sample.at < now.answered:
            break
        if steps is not None and sample.steps is not None and sample.steps != steps:
            break
        steps = sample.steps if steps is None else steps
        first = sample
    return first
