"""Write in a line whether to buy, to rent or to use the API, and at which use that turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.show.text.formats import clean, format_money, format_share

if TYPE_CHECKING:
    from kimi_prov.contract.documents.check import CheckedTarget as Target
    from kimi_prov.contract.documents.check import RankedTarget


def describe_decision(entry: RankedTarget, target: Target) -> str | None:
    """Return the sentences by cost alone; None where a cost or the API's price is not known."""
    parts = [_compare_with_api(entry, target), _compare_with_rent(entry, target)]
    return " ".join(filter(None, parts)) or None


def _compare_with_api(entry: RankedTarget, target: Target) -> str | None:
    cost = target["cost"]
    own = entry["usd_per_million_output_tokens"]["expected"]
    price = (
        cost["break_even"][0]["api_usd_per_million_output_tokens"] if cost["break_even"] else None
    )
    if own is None or price is None:
        return None
    way = "buying" if cost["purchase_usd"] is not None else "renting"
    turns = _find_turning_use(entry, target, own, price)
    use = format_share(cost["utilisation"])
    api = f"the API of {clean(cost['break_even'][0]['api'])}"
    figures = f"{format_money(own)} against {format_money(price)} for a million output tokens"
    if own <= price:
        below = f"; below {format_share(turns)} use the API is" if turns else ""
        return f"By cost alone, at {use} use {way} is cheaper than {api}: {figures}{below}."
    wins = f"{way} wins from {format_share(turns)} use" if turns else f"{way} wins at no use"
    return f"By cost alone, at {use} use {api} is cheaper than {way}: {figures}; {wins}."


def _find_turning_use(
    entry: RankedTarget, target: Target, own: float, price: float
) -> float | None:
    """Return the use from which self-hosting is cheaper than the API; None: at no use."""
    if entry["priced_by"] == "quote":
        return target["cost"]["break_even"][0]["utilisation"]
    # A rent is paid at all hours: a token's cost falls in proportion to the use.
    share = target["cost"]["utilisation"] * own / price
    return share if share <= 1 else None


def _compare_with_rent(entry: RankedTarget, target: Target) -> str | None:
    """Compare a purchase with as many such GPUs rented for the hours of use alone."""
    cost = target["cost"]
    rent, turns = cost["usual_rent_usd_per_hour"], cost.get("rent_utilisation")
    if cost["purchase_usd"] is None or rent is None:
        return None
    hour = format_money(rent * (entry["machines"] or 1))
    if turns is None:
        return f"Renting such GPUs by the hour ({hour}) is cheaper than buying."
    return (
        f"Renting such GPUs by the hour ({hour}) is cheaper than buying below "
        f"{format_share(turns)} use."
    )
