"""Status: stops, sleep and starts, and what they cost."""

from __future__ import annotations

from typing import Literal, Optional, TypedDict

from kimi_prov.contract.documents.form import NotRequired, WeightsHeldIn
from kimi_prov.contract.documents.status.host import AppliedBy


class RestStatus(TypedDict):
    """What a stop and a start of this machine were, and will be."""

    since: str | None
    """Since when it does not serve on purpose; null where it does."""
    by: AppliedBy | None
    requests_cut: int | None
    """Answers that did not end in time when it was stopped."""
    start: StartEstimate | None
    paid: NotRequired[PaidStatus | None]
    rested: RestedStatus
    failed: str | None
    """Why the last request could not wake it."""
    idle: IdleStatus | None
    last_start: LastStart | None
    first_answers: list[FirstAnswer]
    """From the request that woke it to an answer: the last time of each place that the weights were
    in."""


class StartEstimate(TypedDict):
    """What a start will take now; null while it serves."""

    seconds: float | None
    basis: str


class PaidStatus(TypedDict):
    """What it cost, US dollars; null where kimi_hour_usd is not set.

    An earlier version says nothing of it.
    """

    usd_hour: float
    budget_usd: float | None
    """What this session may cost."""
    session: SessionCost
    before: list[SessionBefore]
    """The sessions before, the oldest first."""
    kept: NotRequired[KeptSessions]


class SessionCosts(TypedDict):
    """What a session cost."""

    since: str
    until: str | None
    hours: float
    usd: float


class SessionCost(SessionCosts):
    """From the boot until the last look."""

    starting_usd: float
    serving_usd: float
    idle_usd: float


class SessionBefore(SessionCosts):
    """A session before this one."""

    machine: NotRequired[str]
    """Whose session it was: those of other machines come from the bucket."""


# A key that is a word of Python.
_In = TypedDict("_In", {"in": Optional[str]})


class KeptSessions(_In):
    """Where what sessions cost outlives the machine. An earlier version says nothing of it.

    `in`: a folder in the bucket of the weights; null where they come from none.
    """

    at: str | None
    """When this session was kept last, since the boot."""
    failed: str | None
    """Why it could not be kept the last time."""
    fix: str | None


class RestedStatus(TypedDict):
    """How long it has rested in all, and the most that was saved by that."""

    times: int
    hours: float
    kwh_at_most: float | None
    """By the plan's power of a machine that nobody asks."""
    usd_at_most: float | None
    """By the catalogue's price of a kWh."""


class IdleStatus(TypedDict):
    """When it rests because nobody asks; null for never."""

    after_seconds: int
    action: Literal["stop", "poweroff", "hook"]
    wake: Literal["refuse", "hold", "off"]
    asleep_in_seconds: int | None
    """If nobody asks until then; null while nothing is counted."""
    why_not: str | None
    """Why nothing is counted."""
    failed: str | None
    """Why the last rest failed; null once somebody has asked since."""


class LastStart(TypedDict):
    """The last start that was measured here."""

    at: str
    seconds: float
    held: WeightsHeldIn
    """Where the weights were when it began."""
    by: str


class FirstAnswer(TypedDict):
    """How long a request that woke it waited."""

    held: WeightsHeldIn
    seconds: float
    at: str
