"""Samples the engine and the GPUs while a load runs, and reports the samples by load."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.on_host.engine import metrics, ready
from kimi_prov.on_host.engine.metrics import State
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.contract.documents.plan import MachinePlan

# Either client prints this before the first request that it measures; requests before it are no
# load.
BEGINS = "Starting main benchmark run"
_EVERY_S = 1.0
_TIMEOUT_S = 5.0
_DIGITS = 4
# The first sample of a window still sees idle GPUs: with fewer samples, joules would be wrong.
_MIN_LOOKS = 5
# Begin and end of a run, in seconds of the same clock as samples.
Window = tuple[float, float]


@dataclass(frozen=True)
class Sample:
    """One sample: the watts of the GPUs together, and then the state of the engine's instances.

    A sample takes time: `asked` is when the watts were read and the engine was asked, `told` when
    the engine had answered.
    """

    asked: float
    told: float
    engine: State | None
    watts: float | None


class Meter:
    """Takes samples from `start` to `stop`, in a thread of its own.

    `engine` and `power` read once; what they cannot read is None.
    """

    def __init__(
        self, engine: Callable[[], State | None], power: Callable[[], float | None]
    ) -> None:
        self._engine, self._power = engine, power
        self._ended = threading.Event()
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.samples: list[Sample] = []

    def start(self) -> None:
        """Take the first sample, and go on."""
        self._look()
        self._thread.start()

    def stop(self) -> None:
        """Take the last sample and end."""
        self._ended.set()
        self._wanted.set()
        self._thread.join()
        self._look()

    def look(self) -> None:
        """Have a sample taken at once; do not wait for it."""
        self._wanted.set()

    def _look(self) -> None:
        watts, asked = self._power(), time.monotonic()
        found = self._engine()
        self.samples.append(Sample(asked, time.monotonic(), found, watts))

    def _watch(self) -> None:
        while True:
            self._wanted.wait(_EVERY_S)
            self._wanted.clear()
            if self._ended.is_set():
                return
            self._look()


def read_engine_state(plan: MachinePlan) -> State | None:
    """Read every instance's /metrics on loopback; return their sum, None without any."""
    found = []
    for port in (row["port"] for row in plan["instances"]):
        if port is None:
            continue
        problem, text = ready.send_request(port, "GET", "/metrics", timeout_s=_TIMEOUT_S)
        found.append(None if problem else metrics.parse_state(text))
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):
        return None

    def sum_known(values: Sequence[float | None]) -> float | None:
        told = [value for value in values if value is not None]
        return sum(told) if len(told) == len(values) else None

    uses = [one.cache_use for one in known if one.cache_use is not None]
    return State(
        max(uses) if uses else None,
        sum(one.running for one in known),
        sum(one.waiting for one in known),
        sum_known([one.preemptions for one in known]),
        sum_known([one.queried_tokens for one in known]),
        sum_known([one.hit_tokens for one in known]),
    )


def list_gpus(plan: MachinePlan) -> list[int]:
    """Return the GPUs of all instances."""
    return sorted({gpu for instance in plan["instances"] for gpu in instance.get("gpus") or ()})


def read_watts(gpus: Sequence[int]) -> float | None:
    """Return the watts of these GPUs together; None where one of them has no value."""
    if not gpus:
        return None
    which = ",".join(str(gpu) for gpu in gpus)
    query = ("--query-gpu=power.draw", "--format=csv,noheader,nounits")
    done = run("nvidia-smi", "-i", which, *query, timeout=_TIMEOUT_S)
    if done.returncode != 0:
        return None
    try:
        found = [float(line) for line in done.stdout.split()]
    except ValueError:  # "[N/A]"
        return None
    return sum(found) if len(found) == len(gpus) else None


def describe_engine(samples: Sequence[Sample], windows: Sequence[Window]) -> dict[str, Any]:
    """Return the engine's state in these windows: shares of 1, requests, tokens."""
    inside = [
        one.engine
        for one in samples
        if one.engine is not None
        and any(begin < one.asked and one.told <= end for begin, end in windows)
    ]
    first_and_last = [_find_ends(samples, window) for window in windows]
    queried = _sum_growth(first_and_last, lambda one: one.queried_tokens)
    hit = _sum_growth(first_and_last, lambda one: one.hit_tokens)
    preemptions = _sum_growth(first_and_last, lambda one: one.preemptions)
    reason = None
    if not any(one.engine for one in samples):
        reason = "the engine's /metrics could not be read"
    elif not inside:
        reason = "it ended between two samples"
    return {
        "samples": len(inside),
        "cache_use": _describe_spread([one.cache_use for one in inside]),
        "running": _describe_spread([one.running for one in inside]),
        "waiting": _describe_spread([one.waiting for one in inside]),
        "preemptions": None if preemptions is None else int(preemptions),
        "prefix_cache": {
            "queried_tokens": None if queried is None else int(queried),
            "hit_tokens": None if hit is None else int(hit),
            "hit_share": round(hit / queried, _DIGITS) if hit is not None and queried else None,
        },
        "reason": reason,
    }


def describe_power(
    samples: Sequence[Sample],
    windows: Sequence[Window],
    gpus: Sequence[int],
    output_tokens: int,
    *,
    alone: bool = True,
) -> dict[str, Any]:
    """Return the GPUs' energy in these windows: watts, joules, and tokens of answers a joule.

    Joules are the watts of each sample for the time in which it is the nearest: of GPUs alone, and
    of whatever else ran on them. Without `alone` other hosts' GPUs had a part in the answers:
    nothing is reported.
    """
    drawn = [
        [
            (one.asked, one.watts)
            for one in samples
            if one.watts is not None and _is_in_window(one, window)
        ]
        for window in (windows if alone else ())
    ]
    watts = [each for looks in drawn for _, each in looks]
    enough = bool(drawn) and all(len(looks) >= _MIN_LOOKS for looks in drawn)
    joules = (
        sum(_sum_joules(looks, window) for looks, window in zip(drawn, windows)) if enough else None
    )
    reason = None
    if not gpus:
        reason = "the engine has no GPU; what processors and memory draw is not measured"
    elif not alone:
        reason = "several hosts serve the model together, and only this one's GPUs are seen"
    elif not any(one.watts for one in samples):
        reason = "nvidia-smi does not report the power of the GPUs"
    elif not watts:
        reason = "it ended between two samples"
    elif not enough:
        reason = f"too short for joules: a round has fewer than {_MIN_LOOKS} samples"
    return {
        "gpus": len(gpus),
        "samples": len(watts),
        "watts": _describe_spread(watts),
        "joules": round(joules, 1) if joules else None,
        "tokens_per_joule": round(output_tokens / joules, _DIGITS) if joules else None,
        "reason": reason,
    }


def _is_in_window(sample: Sample, window: Window) -> bool:
    return window[0] < sample.asked <= window[1]


def _sum_joules(looks: Sequence[tuple[float, float]], window: Window) -> float:
    """Return the joules of a window by its samples, each a time and its watts."""
    times = [at for at, _ in looks]
    between = [(times[one] + times[one + 1]) / 2 for one in range(len(times) - 1)]
    edges = [window[0], *between, window[1]]
    return sum(watts * (end - begin) for (_, watts), begin, end in zip(looks, edges, edges[1:]))


def _find_ends(samples: Sequence[Sample], window: Window) -> tuple[State, State] | None:
    """Return the last sample before a window and the first after it; None without either."""
    told = [one for one in samples if one.engine is not None]
    before = [one.engine for one in told if one.told <= window[0]]
    behind = [one.engine for one in told if one.asked >= window[1]]
    if not before or not behind or before[-1] is None or behind[0] is None:
        return None
    return before[-1], behind[0]


def _sum_growth(
    ends: Sequence[tuple[State, State] | None], of: Callable[[State], float | None]
) -> float | None:
    """Return the increase of a counter over all windows; None where it is unknown or was reset."""
    moved = 0.0
    for pair in ends:
        first, last = (of(pair[0]), of(pair[1])) if pair else (None, None)
        if first is None or last is None or last < first:
            return None
        moved += last - first
    return moved if ends else None


def _describe_spread(values: Sequence[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"mean": round(sum(known) / len(known), _DIGITS), "max": round(max(known), _DIGITS)}
