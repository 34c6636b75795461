"""Costs of a machine by the hour and by the token, and where an API would be cheaper.

All money is in US dollars. A token of cost is an output token together with the input tokens that
come with it; their number is an assumption, and every assumption is listed with its source. A part
without a price stays unknown.

Decides: the break-even of a purchase.
Held by: tests/unit/show/report/test_cost.py, tests/unit/planner/test_curve.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from kimi_prov.show.report import hosts
from kimi_prov.show.text.formats import format_share
from kimi_prov.sizing import curve as curves
from kimi_prov.sizing.curve import compute_output_rate
from kimi_prov.sizing.load import Load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.check import (
        Assumption,
        Cost,
        CostByLoad,
        MachinePower,
        UsualPart,
    )
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.facts.quote import PriceFacts, QuotedPrice
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.estimates import PowerPlan, ThroughputPlan
    from kimi_prov.contract.documents.plan.estimates import SpeedsByRequests as Row
    from kimi_prov.contract.documents.ranges import Range

HOURS_A_YEAR = 8766
_MILLION = 1_000_000
_USES = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
_LOADS = (1, 4, 16, 64, 256)
_FREE_OF_INTEREST = "no interest, nothing left at the end"


@dataclass(frozen=True)
class Use:
    """How the machine is paid for and used; None means the catalogue's assumption.

    `utilisation` is the share of all hours in which it works at the planned number of requests,
    `power_price` is in dollars a kWh.
    """

    amortise_years: float | None = None
    utilisation: float | None = None
    power_price: float | None = None


@dataclass(frozen=True)
class Rate:
    """A figure with its source; its unit depends on its use."""

    value: float
    source: str


@dataclass(frozen=True)
class Api:
    """An API's price, in dollars per million tokens. `model` is the catalogue's name."""

    name: str
    model: str | None
    input_usd: float
    output_usd: float
    source: str


@dataclass(frozen=True)
class MachinePrices:
    """The catalogue's figures of one machine's money and power.

    `power_kw` is the plan's draw at full work with cooling, `usual_rent` dollars an hour for its
    GPUs, `usual_gpu_price` the lowest and highest price of all its GPUs, with the source,
    `usual_parts` those of processors and memory, `assumed` the assumed figures: amortise,
    utilisation, electricity, idle_power.
    """

    assumed: Mapping[str, Rate]
    apis: Sequence[Api] = ()
    power_kw: Rate | None = None
    usual_rent: Rate | None = None
    usual_gpu_price: tuple[float, float, str] | None = None
    usual_parts: Sequence[UsualPart] = ()

    def of_hosts(self, many: int) -> MachinePrices:
        """Return money and power of several equal machines."""
        if many == 1:
            return self

        def all_of(one: Rate | None) -> Rate | None:
            return one and Rate(one.value * many, f"{many} hosts, each by {one.source}")

        sold = self.usual_gpu_price
        return replace(
            self,
            power_kw=all_of(self.power_kw),
            usual_rent=all_of(self.usual_rent),
            usual_gpu_price=sold and (sold[0] * many, sold[1] * many, sold[2]),
            usual_parts=[
                {**part, "low": part["low"] * many, "high": part["high"] * many}
                for part in self.usual_parts
            ],
        )


@dataclass
class _Notes:
    """Assumptions and unknown parts of the figures."""

    known: MachinePrices
    rows: list[Assumption] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def add(self, what: str, value: str, source: str) -> None:
        self.rows.append({"what": what, "value": value, "source": source})

    def add_use(self, utilisation: Rate, concurrency: int, inputs: Rate) -> None:
        hours = f"{format_share(utilisation.value)} of all hours"
        self.add("Use", f"{hours}, then {concurrency} requests at once", utilisation.source)
        tokens = f"{inputs.value:g} tokens for each output token, none cached"
        self.add("Input", tokens, inputs.source)

    def add_api(self, api: Api) -> None:
        prices = f"${api.input_usd:,.2f} per million input tokens, ${api.output_usd:,.2f} output"
        self.add(f"API price of {api.name}", prices, api.source)

    def chosen(self, name: str, given: float | None) -> Rate:
        """Return the value of the command line, else the catalogue's assumption."""
        return self.known.assumed[name] if given is None else Rate(given, "given by the reader")


@dataclass(frozen=True)
class _Hour:
    """The cost of an hour in dollars: `fixed` in any case, `work` in proportion to the use."""

    fixed: float
    work: float = 0.0

    def cost_at(self, use: float) -> float:
        return self.fixed + self.work * use


def compute_cost(
    facts: Facts,
    plan: MachinePlan,
    use: Use,
    known: MachinePrices,
    load: Load | None = None,
    daily: float | None = None,
) -> tuple[Cost, list[Assumption]]:
    """Return the cost of one target, and every assumption in it with its source.

    A load gives the input tokens for each output token, else the plan, and `daily` is the use of
    its tokens a day; without a load it is assumed. A use in `use` is preferred to both.
    Facts, prices and the plan's power are of one host; the cost is of all hosts together.
    """
    own = plan.get("power")
    if own:
        known = replace(known, power_kw=Rate(float(own["kw"]), str(own["source"])))
    together = hosts.count_hosts(plan)
    notes = _Notes(known.of_hosts(together))
    utilisation = notes.chosen("utilisation", use.utilisation)
    if daily is not None and use.utilisation is None:
        utilisation = Rate(float(f"{daily:.5g}"), "the load's tokens a day")
    inputs = _find_inputs(plan["throughput"], load)
    price = _scale_price(facts.get("price") or {}, together, notes)
    hour, parts = _compute_hour(price, use, utilisation.value, notes)
    speed = plan["throughput"]
    rate, curve = _compute_rate(speed, inputs.value, notes), curves.read_curve(speed)
    points = _compute_points(curve, inputs.value)
    years = notes.chosen("amortise", use.amortise_years).value
    apis = _sort_apis(str(plan["model"]["name"]), known.apis)
    worths = [_compute_api_worth(api, inputs.value) for api in apis[:1]]
    if rate["expected"]:
        notes.add_use(utilisation, speed["concurrency"], inputs)
    for api in apis:
        notes.add_api(api)
    document = {
        "currency": "USD",
        "utilisation": utilisation.value,
        "input_tokens_per_output_token": inputs.value,
        **parts,
        "power": _scale_power(own, together),
        "output_tok_s_at_full_use": rate,
        "usd_per_million_output_tokens": _compute_costs(hour, rate, utilisation.value),
        "concurrency_computed": [many for many, _ in points],
        "break_even": [
            _compute_break_even(hour, rate, points, utilisation.value, inputs.value, api)
            for api in apis
        ],
        "by_use": _compute_use_costs(hour, rate, worths),
        "by_load": [
            _compute_load_cost(many, hour, curve, inputs.value, utilisation.value, worths)
            for many in _LOADS
        ],
        "years": {"years": years, "usd": _compute_years(hour, utilisation.value, years)},
        "unknown": notes.unknown,
    }
    return cast("Cost", document), notes.rows


def _find_inputs(speed: ThroughputPlan, load: Load | None) -> Rate:
    """Return the input tokens for each output token; without a load those of the speeds."""
    if load is not None:
        return Rate(load.inputs, "the load")
    usual = Load()
    tokens = speed.get("input_tokens", usual.input_tokens)
    return Rate(
        tokens / speed.get("output_tokens", usual.output_tokens),
        "the requests of which the speeds are estimated",
    )


def _scale_power(own: PowerPlan | None, many: int) -> MachinePower | None:
    """Return the figures of power of all hosts; None where the plan has none."""
    if own is None or "cooling" not in own:
        return None
    return {
        "nameplate_kw": round(own["nameplate_kw"] * many, 2),
        "likely_kw": round(own["likely_kw"] * many, 2),
        "order_kw": round(own["order_kw"] * many, 2),
        "cooling": own["cooling"],
    }


def _scale_price(price: PriceFacts, many: int, notes: _Notes) -> PriceFacts:
    """Return the price of all hosts, each of which costs the same."""
    each = {"purchase_usd": price.get("purchase_usd"), "hourly_usd": price.get("hourly_usd")}
    amounts = {key: amount for key, amount in each.items() if amount}
    if many == 1 or not amounts:
        return price
    one = " and ".join(f"${amount:,.2f}" for amount in amounts.values())
    notes.add("Hosts", f"{many} that serve one model together, each {one}", "the quote")
    scaled = {**price, **{key: amount * many for key, amount in amounts.items()}}
    return cast("PriceFacts", scaled)


def _compute_hour(
    price: Mapping[str, Any], use: Use, utilisation: float, notes: _Notes
) -> tuple[_Hour | None, dict[str, Any]]:
    """Return the cost of an hour and its parts; an unknown part is null and named."""
    purchase, rent = price.get("purchase_usd"), price.get("hourly_usd")
    known = notes.known
    quoted = price.get("quoted")
    if quoted:
        rate = f"${quoted['usd_per_unit']:g} for one {quoted['currency']}"
        notes.add("Rate of exchange", f"{rate}; {_format_amounts(quoted)} quoted", "the quote")
    years, power_price = None, None
    parts: dict[str, float | None] = {"purchase": None, "power": None, "rent": None}
    hour: _Hour | None = None
    if rent is not None:
        notes.add("Rent", f"${rent:,.2f} an hour at all hours, power included", "the quote")
        parts["rent"] = float(rent)
        hour = _Hour(float(rent))
    elif purchase is not None:
        years = notes.chosen("amortise", use.amortise_years)
        power_price = notes.chosen("electricity", use.power_price)
        notes.add("Purchase", f"${purchase:,.0f}", "the quote")
        notes.add("Amortisation", f"{years.value:g} years, {_FREE_OF_INTEREST}", years.source)
        notes.add("People, network, rack space", "not counted", "a site's own")
        paid_off = purchase / (years.value * HOURS_A_YEAR)
        hour = _add_power(paid_off, power_price, notes)
        parts["purchase"] = paid_off
        if known.power_kw is not None:
            parts["power"] = hour.cost_at(utilisation) - paid_off
    else:
        notes.unknown.append("price: the target names neither a purchase price nor an hourly one")
    rented, sold = known.usual_rent, known.usual_gpu_price
    return hour, {
        "purchase_usd": purchase,
        "amortise_years": years and years.value,
        "power_price_usd_per_kwh": power_price and power_price.value,
        "power_kw": round_figure(known.power_kw.value) if known.power_kw else None,
        "usd_per_hour_parts": {name: round_figure(value) for name, value in parts.items()},
        "usd_per_hour": round_figure(hour.cost_at(utilisation)) if hour else None,
        "usd_per_hour_excludes": ["power"]
        if purchase is not None and hour is not None and rent is None and known.power_kw is None
        else [],
        "usual_rent_usd_per_hour": rented and round_figure(rented.value),
        "rent_utilisation": _find_rent_use(hour, rented) if purchase is not None else None,
        "usual_rent_source": rented and rented.source,
        "usual_cards_usd": sold and {"low": sold[0], "high": sold[1], "source": sold[2]},
        "usual_parts_usd": list(known.usual_parts),
    }


def _find_rent_use(hour: _Hour | None, rented: Rate | None) -> float | None:
    """Return the use above which the purchase costs less than renting for the hours of use."""
    if hour is None or rented is None or rented.value <= hour.work:
        return None
    share = hour.fixed / (rented.value - hour.work)
    return round_figure(share) if share <= 1 else None


def _format_amounts(quoted: QuotedPrice) -> str:
    """Write the quoted amounts in their own currency."""
    amounts = ((quoted.get("purchase"), ""), (quoted.get("hourly"), " an hour"))
    return " and ".join(
        f"{quoted['currency']} {amount:,.2f}{end}" for amount, end in amounts if amount is not None
    )


def _add_power(purchase: float, price: Rate, notes: _Notes) -> _Hour:
    power, idle = notes.known.power_kw, notes.known.assumed["idle_power"]
    if power is None:
        notes.unknown.append("power: the catalogue has no figure for this machine; it is left out")
        return _Hour(purchase)
    notes.add("Power", f"{power.value:.2f} kW at full work", power.source)
    notes.add("Power when idle", f"{idle.value:.0%} of that", idle.source)
    notes.add("Price of power", f"${price.value:g} a kWh", price.source)
    full = power.value * price.value
    return _Hour(purchase + full * idle.value, full * (1 - idle.value))


def _compute_rate(speed: ThroughputPlan, inputs: float, notes: _Notes) -> Range:
    """Return output tokens a second at full load, with the time to read the input."""
    if not speed["aggregate_tok_s"]["expected"]:
        notes.unknown.append("speed: the plan has no estimate for this machine")
        return curves.make_unknown()
    if not speed["prefill_tok_s"]["expected"]:
        notes.unknown.append("time to read the input: the plan has no estimate of it")
    found = curves.compute_cases(
        lambda case: round_figure(compute_output_rate(speed, inputs, case))
    )
    notes.add(
        "Output at full work",
        f"{found['expected']:,.0f} tokens/s, the time to read the input included",
        f"the plan's estimate of speed: {speed['basis']}",
    )
    return found


def _compute_points(curve: Sequence[Row], inputs: float) -> list[tuple[int, float]]:
    """Return requests at once and output tokens a second of each row of the curve."""
    found = [
        (int(row["concurrency"]), compute_output_rate(row, inputs, "expected")) for row in curve
    ]
    return [(many, float(f"{rate:.5g}")) for many, rate in found if rate]


def _compute_load_cost(
    many: int,
    hour: _Hour | None,
    curve: Sequence[Row],
    inputs: float,
    use: float,
    worths: Sequence[float],
) -> CostByLoad:
    """Return the cost with so many requests at once, those that run, and the API's price."""
    row = curves.find_row(curve, many)
    speeds = curves.compute_cases(lambda case: row and compute_output_rate(row, inputs, case))
    worth = worths[0] if worths else None
    balance = _balance(hour, speeds["expected"], use, worth or 0.0)
    return {
        "concurrency": many,
        "running": row and row["concurrency"],
        "output_tok_s": round_figure(speeds["expected"]),
        "usd_per_million_output_tokens": _compute_costs(hour, speeds, use),
        "api_usd_per_million_output_tokens": round_figure(worth),
        "utilisation": None if worth is None else balance["utilisation"],
        "cheaper": None if worth is None else balance["cheaper"],
    }


def _compute_costs(hour: _Hour | None, rate: Range, use: float) -> Range:
    """Return dollars for a million output tokens; a high speed gives the low cost."""

    def price(case: curves.Case) -> float | None:
        speed = rate[curves.OPPOSITE[case]]
        return round_figure(_compute_per_million(hour, speed, use)) if hour and speed else None

    return curves.compute_cases(price)


def _compute_per_million(hour: _Hour, speed: float, use: float) -> float:
    return compute_usd_per_million(hour.cost_at(use), speed * use)


def compute_usd_per_million(usd_hour: float, tok_s: float) -> float:
    """Return dollars for a million output tokens at `tok_s` tokens a second."""
    return usd_hour * _MILLION / (tok_s * 3600)


def _compute_api_worth(api: Api, inputs: float) -> float:
    """Return an API's price of a million output tokens with their input."""
    return api.output_usd + inputs * api.input_usd


def _compute_break_even(
    hour: _Hour | None,
    rate: Range,
    points: Sequence[tuple[int, float]],
    use: float,
    inputs: float,
    api: Api,
) -> dict[str, Any]:
    """Return the use from which the machine is cheaper than the API.

    That is for the planned number of requests at once, and `at_best` for the best number.
    """
    worth = _compute_api_worth(api, inputs)
    return {
        "api": api.name,
        "api_usd_per_million_output_tokens": round_figure(worth),
        **_balance(hour, rate["expected"], use, worth),
        "at_best": _compute_best(hour, points, use, worth),
    }


def _compute_years(hour: _Hour | None, use: float, years: float) -> float | None:
    return None if hour is None else round_figure(hour.cost_at(use) * HOURS_A_YEAR * years)


def _compute_best(
    hour: _Hour | None, points: Sequence[tuple[int, float]], use: float, worth: float
) -> dict[str, Any] | None:
    """Return the same for the number of requests at once with the cheapest token."""
    if not points:
        return None
    many, speed = max(points, key=lambda point: (point[1], -point[0]))
    return {"concurrency": many, "output_tok_s": speed, **_balance(hour, speed, use, worth)}


def _balance(hour: _Hour | None, speed: float | None, use: float, worth: float) -> dict[str, Any]:
    """Compare the cost of an hour with the worth of its tokens.

    `utilisation` is null where no use is enough; `usd_per_hour_at_most` is the most that the
    machine may cost an hour at the stated use: it is known without a price too.
    """
    document: dict[str, Any] = {
        "usd_per_hour_at_most": None,
        "cost_over_api_at_full_use": None,
        "utilisation": None,
        "output_tokens_per_day": None,
        "cheaper": None,
    }
    if not speed:
        return document
    earned = speed * 3600 / _MILLION * worth
    document["usd_per_hour_at_most"] = round_figure(earned * use)
    if hour is None:
        return document
    document["cost_over_api_at_full_use"] = round_figure(hour.cost_at(1) / earned)
    document["cheaper"] = "self-hosting" if hour.cost_at(use) < earned * use else "api"
    if hour.cost_at(1) <= earned:
        share = hour.fixed / (earned - hour.work)
        document["utilisation"] = round_figure(share)
        document["output_tokens_per_day"] = round(share * speed * 86400)
    return document


def _compute_use_costs(
    hour: _Hour | None, rate: Range, worths: Sequence[float]
) -> list[dict[str, Any]]:
    """Return the cost of a million output tokens by use, beside the model's own API."""
    speed = rate["expected"]
    if hour is None or not speed:
        return []
    costs = [(use, _compute_per_million(hour, speed, use)) for use in _USES]
    return [
        {
            "utilisation": use,
            "usd_per_million_output_tokens": round_figure(cost),
            "cheaper": ("self-hosting" if cost < worths[0] else "api") if worths else None,
        }
        for use, cost in costs
    ]


def _sort_apis(model: str, apis: Sequence[Api]) -> list[Api]:
    """Sort prices: those of the model itself first, then others, the cheapest first."""
    return sorted(apis, key=lambda api: (api.model != model, api.output_usd + api.input_usd))


def round_figure(value: float | None) -> float | None:
    """Round to the digits that are shown: more would claim a false precision."""
    return None if value is None else float(f"{value:.5g}")
