"""`kimi-prov/check/v1`: whether machines are suitable, and what they cost."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kimi_prov.contract.documents.facts import Facts
from kimi_prov.contract.documents.findings import Finding
from kimi_prov.contract.documents.form import Amount, NotRequired, Positive, Rule
from kimi_prov.contract.documents.plan import MachinePlan
from kimi_prov.contract.documents.ranges import AmountRange

Pace = Literal["chat", "slow", "batch", "blocked"]
Cheaper = Literal["self-hosting", "api"]


class Check(TypedDict):
    """The results of `kimi-prov check` for one or more machines."""

    schema: Literal["kimi-prov/check/v1"]
    ok: bool
    """No target has a blocker."""
    load: CheckedLoad | None
    answer: Answer
    targets: Annotated[list[CheckedTarget], Rule(min_items=1)]


class CheckedLoad(TypedDict):
    """The requested load, and what was assumed besides; null: no load was given."""

    people: NotRequired[LoadFigure | None]
    """Who may ask; a share of them has a request in flight at peak."""
    users: LoadFigure | None
    """Requests in flight at peak."""
    tokens_per_day: LoadFigure | None
    """Output tokens of all requests."""
    ttft_s: LoadFigure | None
    """The longest time to the first token."""
    tpot_ms: LoadFigure | None
    """The longest time between two tokens."""
    input_tokens: LoadFigure | None
    """Of a typical prompt."""
    output_tokens: LoadFigure | None
    """Of a typical answer."""


class LoadFigure(TypedDict):
    """A figure of the load."""

    value: Annotated[float, Rule(exclusive_minimum=0)]
    assumed: bool
    """Nobody gave it: it was assumed."""


class Answer(TypedDict):
    """Which target is recommended, and why."""

    sentence: str
    decision: NotRequired[str | None]
    """Whether to buy, to rent or to use the API, by cost alone; null: a cost is not known."""
    recommended: str | None
    """A target's name; null: none is suitable."""
    ranking: list[RankedTarget]
    """Every target, the recommended one first, the blocked ones last."""


class RankedTarget(TypedDict):
    """A target in the order of the recommendation."""

    target: str
    serves: bool
    """Nothing blocks it."""
    by_hand: NotRequired[bool]
    """Nothing blocks it but its engine, which `apply` does not install there."""
    pace: Pace | None
    """By the slower of one request alone and each at the planned number of requests or, with a
    load, at one machine's share: chat 10 tokens a second or more, slow 3 or more, batch under 3;
    null: the speed is not estimated."""
    pace_alone: NotRequired[Pace | None]
    """Of one request alone."""
    meets: NotRequired[bool]
    """It serves, carries the load, and is fast enough to chat where people read along."""
    machines: Positive | None
    """Machines that carry the load; null: no number does, or no load."""
    machines_low: Positive | None
    """At the fast end of the speeds."""
    machines_high: Positive | None
    """At the slow end; null: no number is enough."""
    usd_per_hour: Amount | None
    """Of all these machines; of one without a load."""
    usd_total: Amount | None
    """Of the same over `years`."""
    years: Amount | None
    usd_per_million_output_tokens: AmountRange
    priced_by: Literal["quote", "usual rent"] | None
    lacks: list[str]
    reason: str


class CheckedTarget(TypedDict):
    """One machine, or several equal ones."""

    name: Annotated[str, Rule(min_length=1)]
    """Unique in this document."""
    facts: Facts
    plan: MachinePlan
    findings: list[Finding]
    curve: list[CurvePoint]
    """For 1, 2, 4, ... requests at once, the planned number, and the largest number that runs."""
    pace: Pace | None
    """By the slower of one request alone and each at the planned number of requests or, with a
    load, at one machine's share: chat 10 tokens a second or more, slow 3 or more, batch under 3;
    null: the speed is not estimated."""
    sizing: Sizing | None
    suggestion: NotRequired[Suggestion]
    ways: NotRequired[list[Way]]
    """Better ways with the same machines, each under a condition."""
    cost: Cost
    assumptions: list[Assumption]
    measured: NotRequired[list[MeasuredInstead]]
    """Figures of this machine that replace the catalogue's."""
    effect: NotRequired[dict[str, MeasuredEffect] | None]
    """Figures of plan.throughput planned without the measurements, and with them."""


class Way(TypedDict):
    """How the same machines serve under a condition: a setting, or several joined."""

    condition: str
    hosts: Positive
    """Machines that serve one model together."""
    pace: Pace | None
    pace_alone: Pace | None
    machines: Positive | None
    """Machines, or groups of the joined ones, that carry the load; null: no load."""
    usd_per_hour: Amount | None
    """Of all these machines; of one without a load."""
    requests: Positive
    """At once, on each machine or group."""
    single_tok_s: AmountRange
    decode_tok_s: AmountRange
    """Of each of so many requests."""
    ttft_s: NotRequired[AmountRange]
    """The time to the first token, where the condition changes it."""


class CurvePoint(TypedDict):
    """Speeds with one number of requests at once."""

    concurrency: Positive
    """Requests at once."""
    decode_tok_s: AmountRange
    """Of each request."""
    aggregate_tok_s: AmountRange
    """Of all of them."""
    prefill_tok_s: AmountRange
    """Of one prompt."""
    ttft_s: AmountRange


Bound = Literal["users", "tokens_per_day", "ttft", "tpot", "nothing serves it"]


class Sizing(TypedDict):
    """How many machines carry the load."""

    machines: AmountRange
    """low at the fast end of the speeds; null: no number is enough."""
    requests_a_machine: Positive | None
    """At peak."""
    most_requests: Positive | None
    """Requests that one machine carries within the limits."""
    bound_by: Bound
    ttft_s: AmountRange
    """At `requests_a_machine`; of one request alone where no number carries the load."""
    tpot_ms: AmountRange
    """Likewise."""


class Suggestion(TypedDict):
    """The kind of a machine that `--suggest` made, and the next smaller one that is not enough."""

    kind: Literal["gpu", "hybrid", "cpu"]
    smaller: SmallerMachine | None


class SmallerMachine(TypedDict):
    """The next smaller machine, and why it is not enough."""

    name: str
    why: str


class Cost(TypedDict):
    """The cost of the machine and its tokens."""

    currency: Literal["USD"]
    utilisation: Annotated[float, Rule(maximum=1, exclusive_minimum=0)]
    """Share of all hours in which it works at the planned number of requests."""
    input_tokens_per_output_token: Amount
    purchase_usd: Amount | None
    amortise_years: Amount | None
    power_price_usd_per_kwh: Amount | None
    power_kw: Amount | None
    """Likely at full work, with cooling."""
    power: NotRequired[MachinePower | None]
    """Of all hosts together; null: the catalogue lacks a part."""
    usd_per_hour_parts: HourParts
    usd_per_hour: Amount | None
    """At the given use; null: no price."""
    usd_per_hour_excludes: list[Literal["power"]]
    usual_rent_usd_per_hour: Amount | None
    usual_rent_source: str | None
    rent_utilisation: NotRequired[Amount | None]
    """Use above which the purchase costs less than such GPUs rented for the hours of use; null:
    unknown, or at no use."""
    usual_cards_usd: UsualCards | None
    usual_parts_usd: NotRequired[list[UsualPart]]
    """Public prices of its processors and memory; what is not here has none."""
    output_tok_s_at_full_use: AmountRange
    usd_per_million_output_tokens: AmountRange
    """With the input tokens that belong to them, at the given use."""
    concurrency_computed: list[Positive]
    """Requests at once for which the break-even was computed."""
    break_even: list[BreakEven]
    """The model's own API first."""
    by_use: list[CostByUse]
    by_load: list[CostByLoad]
    """For 1, 4, 16, 64 and 256 requests at once, in the given share of all hours."""
    years: CostOfYears
    unknown: list[str]


class MachinePower(TypedDict):
    """The power of the machine without cooling, and the factor that cooling adds."""

    nameplate_kw: Amount
    """The most that it is rated for."""
    likely_kw: Amount
    """What it draws at full work."""
    order_kw: Amount
    """What to order from the facility."""
    cooling: Amount


class HourParts(TypedDict):
    """The parts of an hour's price."""

    purchase: Amount | None
    power: Amount | None
    rent: Amount | None


class UsualCards(TypedDict):
    """The usual price of its cards."""

    low: Amount | None
    high: Amount | None
    source: str


class UsualPart(TypedDict):
    """The public price of parts of one kind, all of them together."""

    what: str
    """Such as: 2 x Xeon 6980P."""
    low: Amount
    high: Amount
    source: str


class BreakEven(TypedDict):
    """When the machine is cheaper than an API."""

    api: str
    api_usd_per_million_output_tokens: Amount | None
    usd_per_hour_at_most: Amount | None
    """The price of an hour that breaks even at the given use."""
    cost_over_api_at_full_use: Amount | None
    utilisation: Amount | None
    """Use from which self-hosting is cheaper; null: unknown, or never."""
    output_tokens_per_day: int | None
    cheaper: Cheaper | None
    at_best: BreakEvenAtBest | None


class BreakEvenAtBest(TypedDict):
    """The same with the number of requests at once that makes a token cheapest."""

    concurrency: Positive
    output_tok_s: Amount | None
    usd_per_hour_at_most: Amount | None
    cost_over_api_at_full_use: Amount | None
    utilisation: Amount | None
    output_tokens_per_day: int | None
    cheaper: Cheaper | None


class CostByUse(TypedDict):
    """With another share of all hours."""

    utilisation: float
    usd_per_million_output_tokens: Amount | None
    cheaper: Cheaper | None


class CostByLoad(TypedDict):
    """With another number of requests at once."""

    concurrency: Positive
    running: Positive | None
    """Of them, the rest waits."""
    output_tok_s: Amount | None
    usd_per_million_output_tokens: AmountRange
    api_usd_per_million_output_tokens: Amount | None
    utilisation: Amount | None
    """Use from which self-hosting is cheaper; null: unknown, or never."""
    cheaper: Cheaper | None


class CostOfYears(TypedDict):
    """The machine's cost over the years of its amortisation, power included."""

    years: float
    usd: Amount | None


class Assumption(TypedDict):
    """A figure that was assumed."""

    what: str
    value: str
    source: str


class MeasuredInstead(TypedDict):
    """A figure of this machine that replaces one of the catalogue."""

    what: str
    measured: Amount
    instead_of: Amount | None
    unit: str


class MeasuredEffect(TypedDict):
    """A speed without the measurements, and with them."""

    before: AmountRange
    after: AmountRange
