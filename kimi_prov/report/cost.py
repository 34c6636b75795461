"""What a machine costs by the hour and by the token, and where an API would be cheaper.

All money is in US dollars. A "token" of cost is an output token together with the input tokens
that come with it; the ratio is an assumption and is listed. What has no price stays unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOURS_A_YEAR = 8766
_MILLION = 1_000_000
# Input tokens that come with one output token in a chat or an agent's turn.
INPUT_PER_OUTPUT = 4
_SPAN = ("low", "expected", "high")
_UNKNOWN = {"low": None, "expected": None, "high": None}


@dataclass(frozen=True)
class Use:
    """How the machine is paid for and used.

    `utilisation` is the share of all hours in which it works at the planned number of requests;
    `power_price` is in dollars a kWh. `given` names what the reader chose: the rest is assumed.
    """

    amortise_years: float = 3.0
    utilisation: float = 0.3
    power_price: float = 0.12
    given: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Api:
    """What somebody else asks for the same work, in dollars per million tokens."""

    model: str
    provider: str
    input_usd: float
    output_usd: float
    source: str

    @property
    def per_million(self) -> float:
        """A million output tokens with the input tokens that come with them."""
        return self.output_usd + INPUT_PER_OUTPUT * self.input_usd


@dataclass(frozen=True)
class Rate:
    """A figure of the catalogue for one GPU of a model: kW, or dollars an hour."""

    value: float
    source: str


@dataclass(frozen=True)
class Prices:
    """What the catalogue knows about money and power. GPUs are named as in the catalogue."""

    apis: Sequence[Api] = ()
    kw_per_gpu: Mapping[str, Rate] = field(default_factory=dict)
    rent_per_gpu: Mapping[str, Rate] = field(default_factory=dict)


def of(
    facts: Mapping[str, Any], plan: Mapping[str, Any], use: Use, prices: Prices
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return the cost of one target, and every assumption that went into it with its source."""
    notes: list[dict[str, str]] = []
    unknown: list[str] = []
    hour = _hour(facts, plan, use, prices, (notes, unknown))
    rate = _rate(plan, (notes, unknown))
    apis = _comparable(str(plan["model"]["name"]), prices.apis)
    document = {
        "currency": "USD",
        "amortise_years": use.amortise_years,
        "utilisation": use.utilisation,
        "power_price_usd_per_kwh": use.power_price,
        "input_tokens_per_output_token": INPUT_PER_OUTPUT,
        **hour,
        "output_tok_s_at_full_use": rate,
        "usd_per_million_output_tokens": _per_million(hour["usd_per_hour"], rate, use.utilisation),
        "break_even": [_break_even(hour["usd_per_hour"], rate, use, api) for api in apis],
        "unknown": unknown,
    }
    if any(rate.values()):
        notes.append(
            _note(
                "Use",
                f"{use.utilisation:.0%} of all hours at {plan['throughput']['concurrency']} "
                "requests at once",
                _whose(use, "utilisation"),
            )
        )
        notes.append(
            _note(
                "Input tokens",
                f"{INPUT_PER_OUTPUT} for each output token, none of them answered from a cache",
                "assumption: a chat's or an agent's turn; more input makes an API dearer",
            )
        )
    notes += [
        _note(
            f"API price of {api.model}",
            f"${api.input_usd:g} per million input tokens, ${api.output_usd:g} per million output",
            f"{api.provider}: {api.source}",
        )
        for api in apis
    ]
    return document, notes


def _hour(
    facts: Mapping[str, Any],
    plan: Mapping[str, Any],
    use: Use,
    prices: Prices,
    told: tuple[list[dict[str, str]], list[str]],
) -> dict[str, Any]:
    """Give the cost of an hour and its parts; a part that is not known is null and named."""
    notes, unknown = told
    price = facts.get("price") or {}
    purchase, rent = price.get("purchase_usd"), price.get("hourly_usd")
    power = _power(facts, plan, prices)
    parts: dict[str, float | None] = {"purchase": None, "power": None, "rent": None}
    if rent is not None:
        parts["rent"] = float(rent)
        notes.append(_note("Rent", f"${rent:,.2f} an hour, power included", "the quote"))
    elif purchase is not None:
        parts["purchase"] = purchase / (use.amortise_years * HOURS_A_YEAR)
        notes.append(_note("Purchase", f"${purchase:,.0f}", "the quote"))
        notes.append(
            _note(
                "Amortisation",
                f"{use.amortise_years:g} years, no interest, nothing left at the end",
                _whose(use, "amortise_years"),
            )
        )
        if power is None:
            unknown.append("power: the catalogue has no figure for this machine")
        else:
            parts["power"] = power.value * use.power_price
            notes.append(_note("Power", f"{power.value:.2f} kW at all hours", power.source))
            notes.append(
                _note(
                    "Price of power",
                    f"${use.power_price:g} a kWh",
                    _whose(use, "power_price"),
                )
            )
        notes.append(_note("People, network, rack space", "not counted", "assumption"))
    else:
        unknown.append("price: the target names neither a purchase price nor an hourly one")
    paid = rent is not None or purchase is not None
    excluded = ["power"] if parts["purchase"] is not None and parts["power"] is None else []
    known = [value for value in parts.values() if value is not None]
    reference = _reference(facts, prices)
    return {
        "purchase_usd": purchase,
        "power_kw": power.value if power else None,
        "usd_per_hour_parts": {name: _rounded(value) for name, value in parts.items()},
        "usd_per_hour": _rounded(sum(known)) if paid else None,
        "usd_per_hour_excludes": excluded,
        "usual_rent_usd_per_hour": reference and _rounded(reference.value),
        "usual_rent_source": reference and reference.source,
    }


def _power(facts: Mapping[str, Any], plan: Mapping[str, Any], prices: Prices) -> Rate | None:
    """Give the machine's draw in kW: the plan's own figure, else the catalogue's for each GPU."""
    own = plan.get("power") or {}
    if own.get("kw"):
        return Rate(float(own["kw"]), str(own.get("source") or "the plan"))
    return _times_gpus(facts, prices.kw_per_gpu)


def _reference(facts: Mapping[str, Any], prices: Prices) -> Rate | None:
    return _times_gpus(facts, prices.rent_per_gpu)


def _times_gpus(facts: Mapping[str, Any], table: Mapping[str, Rate]) -> Rate | None:
    names = [str(gpu.get("model")) for gpu in facts.get("gpus") or ()]
    if not names or any(name not in table for name in names):
        return None
    sources = list(dict.fromkeys(table[name].source for name in names))
    return Rate(sum(table[name].value for name in names), "; ".join(sources))


def _rate(
    plan: Mapping[str, Any], told: tuple[list[dict[str, str]], list[str]]
) -> dict[str, float | None]:
    """Output tokens a second at full load, when the input has to be read by the same machine.

    A second goes to writing at the aggregate speed or to reading at the prefill speed. Engines
    overlap the two, so this is rather too little than too much.
    """
    notes, unknown = told
    speed = plan["throughput"]
    decode, prefill = speed["aggregate_tok_s"], speed["prefill_tok_s"]
    found: dict[str, float | None] = dict(_UNKNOWN)
    for key in _SPAN:
        if not decode[key]:
            continue
        seconds = 1 / decode[key]
        if prefill[key]:
            seconds += INPUT_PER_OUTPUT / prefill[key]
        found[key] = _rounded(1 / seconds)
    if not found["expected"]:
        unknown.append("speed: the plan has no estimate for this machine")
        return dict(_UNKNOWN)
    if not prefill["expected"]:
        unknown.append("time to read the input: the plan has no estimate of prefill")
    notes.append(
        _note(
            "Output at full load",
            f"{found['expected']:,.0f} tokens/s, reading the input included",
            f"the plan's estimate of speed: {speed['basis']}",
        )
    )
    return found


def _per_million(
    hour: float | None, rate: Mapping[str, float | None], utilisation: float
) -> dict[str, float | None]:
    """Dollars for a million output tokens; the low cost is that of the high speed."""
    if hour is None:
        return dict(_UNKNOWN)
    speeds = dict(zip(_SPAN, (rate["high"], rate["expected"], rate["low"]), strict=True))
    return {
        key: _rounded(hour * _MILLION / (speed * 3600 * utilisation)) if speed else None
        for key, speed in speeds.items()
    }


def _break_even(
    hour: float | None, rate: Mapping[str, float | None], use: Use, api: Api
) -> dict[str, Any]:
    """Say from which use on the machine is cheaper than `api`, and by how much at this use.

    `utilisation` above 1 means that no use is enough. `usd_per_hour_at_most` is what the machine
    may cost an hour to break even at the stated use: known also where no price is.
    """
    speed = rate["expected"]
    worth = speed * 3600 / _MILLION * api.per_million if speed else None
    document: dict[str, Any] = {
        "model": api.model,
        "provider": api.provider,
        "api_usd_per_million_output_tokens": _rounded(api.per_million),
        "usd_per_hour_at_most": _rounded(worth * use.utilisation) if worth else None,
        "utilisation": None,
        "output_tokens_per_day": None,
        "cheaper": None,
    }
    if worth is None or hour is None:
        return document
    return document | {
        "utilisation": _rounded(hour / worth),
        "output_tokens_per_day": round(hour * 24 / api.per_million * _MILLION),
        "cheaper": "self-hosting" if hour < worth * use.utilisation else "api",
    }


def _comparable(model: str, apis: Sequence[Api]) -> list[Api]:
    """Put the prices of the model itself first, the cheapest first; then those of others."""
    return sorted(apis, key=lambda api: (api.model != model, api.per_million))


def _note(what: str, value: str, source: str) -> dict[str, str]:
    return {"what": what, "value": value, "source": source}


def _whose(use: Use, name: str) -> str:
    if name in use.given:
        return "given on the command line"
    return f"assumption of ours; --{name.replace('_', '-')} changes it"


def _rounded(value: float | None) -> float | None:
    """Round to what is shown at most: figures beyond that would claim a precision."""
    return None if value is None else float(f"{value:.5g}")
