"""What is to be done about an engine, from looks at it: decisions alone, without effects.

`/health` of an engine says no more than that its web server runs. So an engine is suspected when
somebody waits for it and none of its steps comes for longer than the plan's slowest step takes;
then it is asked for one token; and it hangs when that, too, does not come in its time, and still no
step did. An engine that computes on the machine's own processors may take a long prompt in as one
step: while it computes it has that step's time. Times are in seconds of a monotonic clock.

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

# Processors' worth of time by which an engine is known to compute: one whose worker stands still
# was seen to use 0.003, one that computes a whole one.
_COMPUTES = 0.1


class What(Enum):
    """What is to be done.

    QUIET: nothing is judged now. IDLE: nobody waits. WORKS: steps come. WAIT: none comes, and not
    for long enough. ASK: ask for a token now. ASKED: wait for the answer. HANGS: it does not go on.
    """

    QUIET, IDLE, WORKS, WAIT, ASK, ASKED, HANGS = range(7)


@dataclass(frozen=True)
class Limits:
    """Seconds. `quiet`: without a step, before it is asked; `ask`: for the answer.

    `computing`: in place of `quiet`, while its processes use the machine's own. `every`: between
    two looks. `asks`: whether it is asked at all; where somebody else asks, it hangs after `quiet`.
    """

    quiet: float
    computing: float
    ask: float
    every: float
    asks: bool = True

    @property
    def gap(self) -> float:
        """Seconds between two looks after which nothing is known of the time between them."""
        return 3 * self.every + self.quiet / 2


@dataclass(frozen=True)
class Question:
    """Our own question: when it was asked first, and whether an answer may still come.

    `problem`: why none came, of the last time that it was asked.
    """

    since: float
    pending: bool = True
    problem: str = ""


@dataclass(frozen=True)
class Sample:
    """One look at an engine.

    `start` tells its present start from every other, empty where it does not serve. `held`: why
    nothing is to be judged now. `steps`: what its steps move, None where it did not tell. `waits`:
    how many requests somebody waits for, by the engine or by the proxy before it. `cpu`: seconds
    that its processes have used since their start. `question`: ours, without an answer so far;
    `answered`: when the last one was answered.
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
    """What is to be done, why, and for how many seconds no step came."""

    what: What
    why: str = ""
    still: float = 0.0


def classify(samples: Sequence[Sample], limits: Limits) -> Verdict:
    """Judge an engine by the looks at it, the oldest first; the last one is of now."""
    now = samples[-1]
    if now.held:
        return Verdict(What.QUIET, now.held)
    first = _find_first_still(samples, limits)
    if first is None:
        return Verdict(What.IDLE)
    if _has_moved(samples):
        return Verdict(What.WORKS)
    return _classify_still(now, first, limits)


def _has_moved(samples: Sequence[Sample]) -> bool:
    """Whether a step came between the last two looks, as far as they can be compared."""
    before, now = samples[-2:] if len(samples) > 1 else (samples[-1], samples[-1])
    known = before.steps is not None and now.steps is not None
    return known and before.start == now.start and before.steps != now.steps


def _classify_still(now: Sample, first: Sample, limits: Limits) -> Verdict:
    """Judge an engine that has made no step since the look `first`."""
    still = now.at - first.at
    why = _describe_so_far(now, still)
    computes = now.cpu - first.cpu >= _COMPUTES * still > 0
    if still < (limits.computing if computes else limits.quiet):
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


def _describe_so_far(now: Sample, still: float) -> str:
    if now.steps is None:
        return f"it tells nothing of its steps for {still:.0f} s"
    requests = "request waits" if now.waits == 1 else "requests wait"
    return f"no step for {still:.0f} s while {now.waits} {requests} or run"


def _is_suspect(sample: Sample) -> bool:
    """Whether somebody waits, or an engine that serves tells nothing at all."""
    return sample.waits > 0 or sample.steps is None


def _find_first_still(samples: Sequence[Sample], limits: Limits) -> Sample | None:
    """Return the look since which no step came though somebody waits; None where nobody waits now.

    A look that was held, of another start or long before the next one ends the time: of what was
    before it nothing is known. So does an answer to our own question.
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
