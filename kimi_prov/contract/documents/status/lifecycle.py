"""Status: stops, sleep and starts, and their cost."""

from __future__ import annotations

from typing import Literal, Optional, TypedDict

from kimi_prov.contract.documents.form import NotRequired, WeightsHeldIn
from kimi_prov.contract.documents.status.host import AppliedBy


class RestStatus(TypedDict):
    """The last stop and start of this machine, and estimates of the next."""

    since: str | None
    """Since when it is stopped or asleep; null where it serves."""
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
    """From the request that woke it to an answer: the last times, by where the weights were."""


class StartEstimate(TypedDict):
    """The estimate of a start now; null while it serves."""

    seconds: float | None
    basis: str


class PaidStatus(TypedDict):
    """The cost, US dollars; null where kimi_hour_usd is not set.

    An earlier version does not report it.
    """

    usd_hour: float
    budget_usd: float | None
    """The budget of this session."""
    session: SessionCost
    before: list[SessionBefore]
    """The sessions before, the oldest first."""
    kept: NotRequired[KeptSessions]


class SessionCosts(TypedDict):
    """The cost of a session."""

    since: str
    until: str | None
    hours: float
    usd: float


class SessionCost(SessionCosts):
    """From the boot until the last update."""

    starting_usd: float
    serving_usd: float
    idle_usd: float


class SessionBefore(SessionCosts):
    """A session before this one."""

    machine: NotRequired[str]
    """The machine of the session: those of other machines come from the bucket."""


# This key is a keyword of Python.
_In = TypedDict("_In", {"in": Optional[str]})


class KeptSessions(_In):
    """Where the cost of sessions outlives the machine. An earlier version does not report it.

    `in`: a folder in the bucket of the weights; null where they come from none.
    """

    at: str | None
    """When this session was last stored, since the boot."""
    failed: str | None
    """Why the last attempt to store it failed."""
    fix: str | None


class RestedStatus(TypedDict):
    """How long it was stopped or asleep in all, and the most that this saved."""

    times: int
    hours: float
    kwh_at_most: float | None
    """By the plan's power of an idle machine."""
    usd_at_most: float | None
    """By the catalogue's price of a kWh."""


class IdleStatus(TypedDict):
    """When it sleeps because no client asks; null for never."""

    after_seconds: int
    action: Literal["stop", "sleep", "poweroff", "hook"]
    wake: Literal["refuse", "hold", "off"]
    asleep_in_seconds: int | None
    """If no client asks until then; null while nothing is counted."""
    why_not: str | None
    """Why nothing is counted."""
    failed: str | None
    """Why the last sleep failed; null once a client has asked since."""


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
