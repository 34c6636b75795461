"""Facts that only quotes have."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kimi_prov.contract.documents.form import NotRequired, Quantity, Rule


class NicFacts(TypedDict, total=False):
    """A network card of a quote."""

    name: str | None
    kind: str | None
    speed_bits_per_s: Quantity | None
    up: bool | None


class GroupFacts(TypedDict):
    """Equal hosts that serve one model together, as a spec sheet says.

    All other facts are of one of them.
    """

    hosts: Annotated[int, Rule(minimum=1, maximum=64)]
    link: LinkFacts | None


class LinkFacts(TypedDict):
    """The network between them."""

    kind: Literal["infiniband", "roce", "ethernet"]
    speed_bits_per_s: Quantity | None
    """Of one port."""
    count: Annotated[int, Rule(minimum=1, maximum=64)]
    """Ports of each host."""


class PriceFacts(TypedDict, total=False):
    """The price of the machine."""

    purchase_usd: Quantity | None
    hourly_usd: Quantity | None
    quoted: QuotedPrice | None


class QuotedPrice(TypedDict):
    """The amounts in the currency of the quote, and its rate.

    The rate is the dollars for one unit.
    """

    currency: Annotated[str, Rule(max_length=3)]
    usd_per_unit: Quantity
    purchase: NotRequired[Quantity | None]
    hourly: NotRequired[Quantity | None]
