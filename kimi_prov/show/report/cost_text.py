"""The costs of a target in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.show.report import hosts
from kimi_prov.show.report.verdict import count_running, get_status
from kimi_prov.show.text.formats import (
    UNKNOWN,
    clean,
    format_figure,
    format_money,
    format_money_range,
    format_sentence,
    format_share,
    format_years,
    read_span,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.check import BreakEven, UsualPart
    from kimi_prov.contract.documents.check import CheckedTarget as Target


# The figures of a machine's power, and what they are called.
POWER = (
    ("nameplate_kw", "Nameplate"),
    ("likely_kw", "Likely draw"),
    ("order_kw", "To order"),
)


def format_hourly(target: Target) -> str:
    """Write the cost of an hour, and what it leaves out."""
    found = target["cost"]
    left = f", without {' and '.join(found['usd_per_hour_excludes'])}"
    return format_money(found["usd_per_hour"]) + (left if found["usd_per_hour_excludes"] else "")


def format_price(target: Target) -> str:
    """Write the price as it was quoted; without one, the usual rent."""
    quoted = target["facts"].get("price") or {}
    many = hosts.count_target_hosts(target)
    for one, way in ((quoted.get("purchase_usd"), "to buy"), (quoted.get("hourly_usd"), "an hour")):
        if one is not None:
            parts = f" ({many} x {format_money(one)})" if many > 1 else ""
            return f"{format_money(one * many)} {way}{parts}"
    rent = target["cost"]["usual_rent_usd_per_hour"]
    if rent is not None:
        return f"{UNKNOWN}; such GPUs usually rent for {format_money(rent)} an hour"
    known = [_format_part(part) for part in target["cost"].get("usual_parts_usd") or ()]
    return f"{UNKNOWN}; {', '.join(known)}" if known else UNKNOWN


def _format_part(part: UsualPart) -> str:
    low, high = format_money(part["low"]), format_money(part["high"])
    return f"{part['what']} {low if low == high else f'{low} to {high}'}"


def format_prices(target: Target) -> str:
    """Write price, hour and years in a line, each known one once."""
    if target["cost"]["usd_per_hour"] is None:
        return format_price(target)
    hour = [] if target["cost"]["purchase_usd"] is None else [f"an hour {format_hourly(target)}"]
    return "; ".join([format_price(target), *hour, format_years_cost(target)])


def format_years_cost(target: Target) -> str:
    """Write the cost over the years of the calculation."""
    found = target["cost"]["years"]
    return (
        UNKNOWN
        if found["usd"] is None
        else f"{format_money(found['usd'])} in {format_years(found['years'])}"
    )


def describe_use(targets: Sequence[Target]) -> str:
    """Describe the use of the costs, if all have the same."""
    found = {target["cost"]["utilisation"] for target in targets}
    return f"{format_share(found.pop())} use" if len(found) == 1 else "the stated use of each"


def describe_assumptions(targets: Sequence[Target]) -> str:
    """Write a sentence with the assumptions of most figures."""
    costs = [target["cost"] for target in targets]

    def common(texts: set[str]) -> list[str]:
        return sorted(texts) if len(texts) == 1 else []

    parts = [
        "speeds are estimates, not measurements",
        *common(
            {f"the machine works {format_share(row['utilisation'])} of all hours" for row in costs}
        ),
        *common(
            {
                f"{row['input_tokens_per_output_token']:g} input tokens come with each output token"
                for row in costs
            }
        ),
        *common({f"money is counted over {format_years(row['years']['years'])}" for row in costs}),
        *common(
            {
                f"power costs ${row['power_price_usd_per_kwh']:g} a kWh"
                for row in costs
                if row["power_price_usd_per_kwh"] is not None
            }
        ),
    ]
    text = ", ".join(parts)
    return clean(f"{text[0].upper()}{text[1:]}.")


def describe_costs(target: Target) -> list[str]:
    """Write what the tokens cost, and from which use self-hosting loses."""
    return [*_describe_blocked(target), *_describe_sums(target)]


def _describe_blocked(target: Target) -> list[str]:
    """Write for a blocked machine that its costs are those without blockers."""
    if get_status(target) != "blocked":
        return []
    return ["Counted as if its blockers were fixed, without what fixing them costs."]


def _describe_sums(target: Target) -> list[str]:
    found = target["cost"]
    lines = []
    each = read_span(found["usd_per_million_output_tokens"])
    use = format_share(found["utilisation"])
    if each.expected is not None:
        lines.append(
            f"At {use} use a million output tokens cost {format_money_range(each)}, the "
            f"{found['input_tokens_per_output_token']:g} million input tokens with them included."
        )
    lines += [_compare_with_api(row, target) for row in found["break_even"][:1]]
    if not lines:
        lines.append("What a token costs is not known.")
    if found["output_tok_s_at_full_use"]["expected"] is not None:
        lines.append(_describe_load(target))
    rent = found["usual_rent_usd_per_hour"]
    if found["usd_per_hour"] is None and rent is not None:
        most = found["break_even"][0]["usd_per_hour_at_most"] if found["break_even"] else None
        word = "" if most is None else ", more than that" if rent > most else ", less than that"
        lines.append(
            f"Such GPUs usually rent for {format_money(rent)} an hour{word} "
            f"({found['usual_rent_source']})."
        )
    sold = found["usual_cards_usd"]
    if found["usd_per_hour"] is None and sold is not None:
        low, high = format_money(sold["low"]), format_money(sold["high"])
        lines.append(f"Such GPUs alone were seen for {low} to {high} ({sold['source']}).")
    if found["usd_per_hour"] is None:
        lines += [
            f"Public price: {_format_part(part)} ({part['source']})."
            for part in found.get("usual_parts_usd") or ()
        ]
    lines += [format_sentence(f"Unknown: {text}") for text in found["unknown"]]
    return [clean(line) for line in lines]


def _describe_load(target: Target) -> str:
    few, many = count_running(target), target["plan"]["throughput"]["concurrency"]
    if few < many:
        return (
            f"All else with {few} request{'s' * (few != 1)} running at once: the cache holds no "
            "more of that length; shorter ones make a token cheaper."
        )
    best = [row["at_best"] for row in target["cost"]["break_even"] if row["at_best"]]
    cheaper = any(row["concurrency"] > many for row in best)
    more = "more make a token cheaper" if cheaper else "more bring nothing"
    return f"All else with {count_requests(many)}; {more}."


def describe_costs_briefly(target: Target) -> str:
    """Write in one sentence the cost, the API's price, and which is lower at which load."""
    found = target["cost"]
    each = found["usd_per_million_output_tokens"]["expected"]
    before = _describe_blocked(target)
    if each is None or not found["break_even"]:
        return " ".join([*before, _describe_sums(target)[0]])
    row = found["break_even"][0]
    many = target["plan"]["throughput"]["concurrency"]
    use, api = format_share(found["utilisation"]), clean(row["api"])
    asks = format_money(row["api_usd_per_million_output_tokens"])
    sentence = (
        f"With {count_requests(many)} a million output tokens cost {format_money(each)} at {use} "
        f"use, by the API of {api} {asks}: {_describe_outcome(row, target)}."
    )
    return " ".join([*before, sentence])


def _describe_outcome(row: BreakEven, target: Target) -> str:
    """Write from which load self-hosting is cheaper."""
    best = row["at_best"]
    if row["utilisation"]:
        return f"with so many self-hosting loses below {format_share(row['utilisation'])} use"
    if best and best["utilisation"]:
        return (
            f"with so many self-hosting loses at any use, with {best['concurrency']} at once it "
            f"wins from {_format_break_even(best)}"
        )
    computed = describe_computed(target["cost"]["concurrency_computed"])
    return f"self-hosting loses at any use, {computed}"


def describe_break_even(target: Target) -> str:
    """Write in a few words from which use a machine is cheaper than the model's own API."""
    rows = target["cost"]["break_even"]
    if not rows or rows[0]["cheaper"] is None:
        return UNKNOWN
    row, best = rows[0], rows[0]["at_best"]
    mended = " once its blockers are fixed" * (get_status(target) == "blocked")
    if row["utilisation"]:
        return f"from {format_share(row['utilisation'])} use{mended}"
    if best and best["utilisation"]:
        many = count_requests(best["concurrency"])
        return f"from {format_share(best['utilisation'])} use with {many}{mended}"
    return "never"


def count_requests(many: int) -> str:
    """Write a number of requests at once."""
    return f"{many} request{'s' * (many != 1)} at once"


def describe_computed(computed: Sequence[int]) -> str:
    """Write the numbers of requests at once for which costs were computed."""
    if len(computed) == 1:
        return f"with {count_requests(computed[0])}, and more bring nothing"
    return f"with each of {', '.join(map(str, computed[:-1]))} and {count_requests(computed[-1])}"


def _compare_with_api(row: Mapping[str, Any], target: Target) -> str:
    use, many = (
        format_share(target["cost"]["utilisation"]),
        target["plan"]["throughput"]["concurrency"],
    )
    best = row["at_best"]
    million = format_money(row["api_usd_per_million_output_tokens"])
    asks = f"The API of {row['api']} asks {million} for a million output tokens with their input"
    if row["usd_per_hour_at_most"] is None:
        return f"{asks}; whether self-hosting pays is not known without a speed."
    if row["cheaper"] is None:
        most, at_best = (
            format_money(row["usd_per_hour_at_most"]),
            format_money(best["usd_per_hour_at_most"]),
        )
        other = (
            f"; with {count_requests(best['concurrency'])}, {at_best}" if most != at_best else ""
        )
        return (
            f"{asks}: at {use} use self-hosting loses unless an hour costs less than {most}, "
            f"everything included{other}."
        )
    if best["utilisation"] is None:
        computed = describe_computed(target["cost"]["concurrency_computed"])
        times = format_figure(best["cost_over_api_at_full_use"])
        return (
            f"{asks}. Self-hosting loses at any use, {computed}: with {best['concurrency']} at all "
            f"hours it would still cost {times} times as much."
        )
    wins = f"wins from {_format_break_even(best)}"
    if row["utilisation"] is None:
        return (
            f"{asks}. With {count_requests(many)} self-hosting loses at any use; with "
            f"{best['concurrency']} it {wins}."
        )
    now = "is cheaper" if row["cheaper"] == "self-hosting" else "loses"
    other = (
        f" With {count_requests(best['concurrency'])} it {wins}."
        if best["concurrency"] != many
        else ""
    )
    below = f"Self-hosting loses below {_format_break_even(row)}"
    return f"{asks}. {below}; at the stated {use} it {now}.{other}"


def _format_break_even(row: Mapping[str, Any]) -> str:
    daily = format_figure(row["output_tokens_per_day"] / 1e6)
    return f"{format_share(row['utilisation'])} use ({daily} million output tokens a day)"
