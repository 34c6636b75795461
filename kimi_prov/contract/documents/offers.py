"""`kimi-prov/offers/v1`: the spec sheets that pasted offers say."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Positive, Recorded


class Offers(TypedDict):
    """The sheets of `kimi-prov check --text`, as far as the offers were understood."""

    schema: Literal["kimi-prov/offers/v1"]
    offers: list[OfferSheet]


class OfferSheet(TypedDict):
    """One offer. price: an amount without a word for purchase or rent."""

    source: str
    sheet: Recorded
    """A document kimi-prov/spec/v1, for correction: a part may be missing."""
    missing: list[Literal["cpu", "memory"]]
    price: str | None
    unread: list[UnreadLine]


class UnreadLine(TypedDict):
    """A line of the offer that says nothing of a machine, or was not understood."""

    line: Positive
    text: str
