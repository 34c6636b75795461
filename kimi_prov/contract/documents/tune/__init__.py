"""`kimi-prov/tune/v1`: what a tune of machines would try, or has tried and found."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from kimi_prov.contract.documents.bench import BenchedMachine, EngineVersion, Serving
from kimi_prov.contract.documents.form import Count, NotRequired, Positive, Required
from kimi_prov.contract.documents.load import BenchLoad


class Tune(TypedDict):
    """What each machine tried and measured; `preview`: what it would try, before it does.

    Rates are in tokens a second. A host that failed or was not reached has only ok and detail.
    """

    schema: Literal["kimi-prov/tune/v1"]
    ok: bool
    preview: NotRequired[bool]
    hosts: dict[str, TunedHost]


class TunedHost(TypedDict, total=False):
    """One host's tune; `ok` is false where what was applied does not serve afterwards."""

    ok: Required[bool]
    detail: Required[str]
    model: str
    engine: EngineVersion
    machine: BenchedMachine
    purpose: TunePurpose
    """latency: the rate of a request alone, with the wait for its first token; throughput: of all
    requests together; balanced: the geometric mean of both."""
    users: Positive
    """Requests at once of the load."""
    stand_ins: list[str]
    start_s: float | None
    """The seconds that a start takes, as the last ones did; in a preview."""
    basis: str
    starts: Count
    rounds: Count
    """Rounds of the load for what may win."""
    note: str | None
    served: TuneRow | None
    again: TuneRow | None
    """What serves, measured once more at the end; null where no candidate was better until then."""
    noise: float | None
    """The spread of all rounds of what serves, as a share of their median."""
    candidates: list[TuneRow]
    winner: TuneRow | None
    """The candidate that is better than every round of what serves; null for none."""
    outcome: TuneOutcomeOfHost
    left_out: list[TuneLeftOut]
    lines: str | None
    """The lines of an inventory with which the next apply keeps the winner."""
    written: str | None
    """The file that got these lines; null where they were only printed."""
    measured_at: str
    busy: bool
    """Whether others worked on the machine when it began."""
    load: BenchLoad
    input_tokens: Positive
    """Asked for, of each prompt; absent: as predicted."""
    output_tokens: Positive
    """Asked for, of each answer; absent: as predicted."""
    prompts_of_file: bool


class TuneRow(TypedDict, total=False):
    """What serves, or a candidate, with what was measured.

    In a preview it has only the first four keys, and `reason` says why it would be left out.
    """

    setting: Required[str | None]
    label: Required[str]
    reason: Required[str | None]
    estimate: Required[TuneRange | None]
    variables: Variables
    state: TuneState
    start_s: float | None
    shift: float | None
    """The share of probability of the next tokens that moved against what serves."""
    rate: TuneRate | None
    gain: float | None
    """Against the best so far; of the winner, against all rounds of what serves. Of the setting
    load-format it is that of the start: how much longer what serves takes."""
    rounds: list[TuneRound]
    serving: Serving | None


TunePurpose = Literal["latency", "throughput", "balanced"]
# Variables of an inventory with the values that were tried.
Variables = dict[str, Any]

TuneState = Literal[
    "serves", "wins", "better", "no gain", "slower", "failed", "left out", "no time"
]


class TuneRange(TypedDict):
    """The planner's estimate."""

    low: float
    expected: float
    high: float


class TuneRate(TypedDict):
    """The slowest round, the median and the fastest round."""

    low: float
    median: float
    high: float


class TuneRound(TypedDict):
    """A round of the load with one number of requests at once, as the bench client measured it."""

    round: Positive
    concurrency: Positive
    requests: Count
    failed: Count
    seconds: float
    input_tokens: Count
    output_tokens: Count
    ttft_s: TuneLatency
    tpot_s: TuneLatency
    decode_tok_s: float | None
    aggregate_tok_s: float | None


class TuneLatency(TypedDict):
    """Seconds."""

    median: float | None
    p99: float | None


class TuneLeftOut(TypedDict):
    """A setting that this version does not try, and why."""

    name: str
    text: str
    reason: str


class TuneOutcomeOfHost(TypedDict):
    """Whether what was applied serves again, and how long clients were without it."""

    serves: bool
    finished: bool
    reason: str | None
    fix: str | None
    seconds: float
