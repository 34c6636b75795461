"""What the control machine asks of a machine that it tunes, and what that answers."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.answers import ExpectedStart
from kimi_prov.contract.documents.form import Count, NotRequired, Positive, Recorded
from kimi_prov.contract.documents.load import BenchLoad
from kimi_prov.contract.documents.plan.engine import InstancePlan
from kimi_prov.contract.documents.tune import TuneOutcomeOfHost, TunePurpose, TuneRound


class TuneOptions(TypedDict):
    """The options of the command; null leaves the choice to the machine's settings."""

    purpose: TunePurpose | None
    users: Positive | None
    usual_users: Positive
    ttft_s: float | None
    tpot_s: float | None
    within_s: Positive
    drain_s: Count
    only: list[str]
    load: BenchLoad
    prompts: NotRequired[list[Recorded]]


class TuneRequest(TypedDict, total=False):
    """A tune that begins: the seconds for answers under way, and for all of it."""

    drain_s: float
    limit_s: float
    by_run: Recorded
    at_s: float
    """By the machine's monotonic clock, when the tune began."""
    entry: int | None
    """Its entry in the history; null where none could be written."""


class TuneJob(TypedDict, total=False):
    """The next trial, or the end of the tune. Without `instances` it is of what serves."""

    do: Literal["try", "end"]
    now: bool
    """With the end: the trial under way is ended too."""
    turn: Positive
    start: bool
    answers: bool
    limit_s: float | None
    """Seconds for the load, after which the trial has lost; null without such a limit."""
    drop_ins: dict[str, str]
    instances: list[InstancePlan] | None
    load: Recorded
    prompts: list[Recorded]


# For each question, the log probabilities of the likely tokens at each place of its answer.
TokenChances = list[list[dict[str, float]]]


class TuneLookAnswer(TypedDict):
    """How long a start of the engine takes, and the machine's load average."""

    ok: bool
    load: float
    expected: ExpectedStart


class TuneAnswer(TypedDict):
    """What the unit of a tune does; `result` of its last job, `outcome` of the way back."""

    ok: bool
    running: bool
    line: str
    result: TuneResult | None
    outcome: TuneOutcomeOfHost | None


class TuneResult(TypedDict):
    """A candidate: started, asked and measured, or the stage at which it failed, and why."""

    turn: NotRequired[Count]
    ok: bool
    stage: str | None
    reason: str | None
    start_s: float | None
    answers: TokenChances | None
    rounds: list[TuneRound]
