"""`kimi-prov/sessions/v1`: what sessions of paid machines cost."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Amount


class Sessions(TypedDict):
    """What sessions of machines cost, by kimi-prov sessions.

    Amounts in US dollars, by the price that each machine was told; disks, traffic and requests are
    not in them.
    """

    schema: Literal["kimi-prov/sessions/v1"]
    ok: bool
    bucket: str
    """The folder that keeps them."""
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
    """When the machine last looked."""
    hours: Amount
    usd: Amount
    """What it cost."""
    starting_usd: Amount
    """Of that, while it did not serve yet."""
    serving_usd: Amount
    """While it answered."""
    idle_usd: Amount
    """While nobody asked."""
    usd_hour: Amount
    """What an hour cost: kimi_hour_usd."""
    budget_usd: float | None
    end: str | None
    """Why it ended; null where it goes on, or where nobody could tell."""
