"""`kimi-prov/sessions/v1`: the cost of sessions of paid machines."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Amount


class Sessions(TypedDict):
    """The cost of sessions of machines, by kimi-prov sessions.

    Amounts in US dollars, by the price in each machine's settings; disks, traffic and requests are
    not included.
    """

    schema: Literal["kimi-prov/sessions/v1"]
    ok: bool
    bucket: str
    """The folder in which they are stored."""
    usd: Amount
    """Of all that are listed."""
    sessions: list[PaidSession]
    """The oldest first; of more than 500 the newest."""


class PaidSession(TypedDict):
    """A machine from its boot to its end."""

    machine: str | None
    """Its host name."""
    model: str | None
    since: str
    until: str
    """When the machine last updated it."""
    hours: Amount
    usd: Amount
    """The cost of the session."""
    starting_usd: Amount
    """Of that, while it did not serve yet."""
    serving_usd: Amount
    """While it answered."""
    idle_usd: Amount
    """While it was idle."""
    usd_hour: Amount
    """The price of an hour: kimi_hour_usd."""
    budget_usd: float | None
    end: str | None
    """Why it ended; null where it goes on, or where the reason is unknown."""
