"""The answer of a check: which target to take, the order of the others, and the reasons.

Targets that serve the model come first. With a load they are sorted by the cost of an hour of it,
without one by the cost of a million tokens. A load with requests at once but no limit between
tokens means people who read along: there pace comes before cost. A target without a price counts
with the usual rent of its GPUs, which its text says; a target without either comes last.

Decides: which target a check recommends.
Held by: tests/unit/show/report/test_answer.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from kimi_prov.show.report import decision, hosts, ways
from kimi_prov.show.report.cost import HOURS_A_YEAR, round_figure
from kimi_prov.show.report.findings import filter_severity, is_by_hand
from kimi_prov.show.text.formats import clean, format_figure, format_money, format_sentence
from kimi_prov.sizing import curve as curves
from kimi_prov.sizing import demand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.check import Answer, Pace, RankedTarget
    from kimi_prov.contract.documents.check import CheckedTarget as Target
    from kimi_prov.contract.documents.ranges import AmountRange, Range
    from kimi_prov.sizing.load import Load

_PACES = ("chat", "slow", "batch", None)
_PACE_WORDS = {
    "chat": "fast enough to chat",
    "slow": "slow to read along",
    "batch": "too slow to chat",
    None: "of unknown speed",
}


def build_answer(targets: Sequence[Target], load: Load | None) -> Answer:
    """Return the document's `answer`."""
    entries = [build_entry(target, load) for target in targets]
    for entry in entries:
        entry["meets"] = _meets(entry, load)
    speeds = {t["name"]: _find_best_speed(t) for t in targets}
    ranking = sorted(entries, key=lambda entry: _rank(entry, load, speeds[entry["target"]]))
    best = ranking[0] if ranking and _is_enough(ranking[0], load) else None
    for place, entry in enumerate(ranking):
        entry["reason"] = _explain_place(entry, load, place if best else None, targets)
    return {
        "sentence": _write_sentence(ranking, best, load, targets),
        "decision": best and decision.describe_decision(best, _find_target(best, targets)),
        "recommended": best and best["target"],
        "ranking": ranking,
    }


def _find_target(entry: RankedTarget, targets: Sequence[Target]) -> Target:
    return next(target for target in targets if target["name"] == entry["target"])


def _is_enough(entry: RankedTarget, load: Load | None) -> bool:
    return entry["serves"] and (load is None or entry["machines"] is not None)


def _meets(entry: RankedTarget, load: Load | None) -> bool:
    """Whether a target carries the load at a pace to read along with, where people do."""
    paced = load is None or _is_paced(load)
    return _is_enough(entry, load) and (entry["pace"] == "chat" or not paced)


def _classify_alone(target: Target) -> Pace | None:
    return "blocked" if target["pace"] == "blocked" else curves.classify_pace(target["curve"], 1)


def build_entry(target: Target, load: Load | None) -> RankedTarget:
    """Return a target's entry of the ranking, its place apart."""
    found, sizing = target["cost"], target["sizing"]
    machines = sizing["machines"] if sizing else None
    low, expected, high = (_read_count(machines, name) for name in ("low", "expected", "high"))
    quoted, rent = found["usd_per_hour"], found["usual_rent_usd_per_hour"]
    hour = quoted if quoted is not None else rent
    many = expected if load else 1
    total = None if hour is None or many is None else hour * many
    years = found["years"]["years"]
    return {
        "target": target["name"],
        "serves": not filter_severity(target, "blocker"),
        "by_hand": is_by_hand(target),
        "pace": target["pace"],
        "pace_alone": _classify_alone(target),
        "meets": False,
        "machines": expected,
        "machines_low": low,
        "machines_high": high,
        "usd_per_hour": round_figure(total),
        "usd_total": round_figure(total and total * HOURS_A_YEAR * years),
        "years": years,
        "usd_per_million_output_tokens": _estimate_cost(target, hour),
        "priced_by": "quote" if quoted is not None else "usual rent" if rent is not None else None,
        "lacks": _list_lacks(target, load),
        "reason": "",
    }


def _read_count(
    machines: AmountRange | None, bound: Literal["low", "expected", "high"]
) -> int | None:
    count = machines[bound] if machines else None
    return None if count is None else int(count)


def _estimate_cost(target: Target, hour: float | None) -> Range:
    """Return dollars for a million output tokens under the load, or as planned without one."""
    found, sizing = target["cost"], target["sizing"]
    row: Any = target["plan"]["throughput"]
    if sizing is not None:
        share = sizing["requests_a_machine"]
        row = curves.find_row(target["curve"], share) if share else None
    if hour is None or row is None:
        return curves.make_unknown()
    inputs, use = found["input_tokens_per_output_token"], found["utilisation"]

    def price(case: curves.Case) -> float | None:
        rate = curves.compute_output_rate(row, inputs, curves.OPPOSITE[case])
        return round_figure(hour * 1e6 / (rate * 3600 * use)) if rate else None

    return curves.compute_cases(price)


def _list_lacks(target: Target, load: Load | None) -> list[str]:
    """Name what keeps a target from what the reader asked for, the gravest first."""
    lacks = [clean(row["title"]) for row in filter_severity(target, "blocker")]
    curve, sizing = target["curve"], target["sizing"]
    if not curve:
        lacks.append("an estimate of its speed")
    context = target["plan"]["model"]["context"]
    if load is not None and not load.fits(context):
        wanted = load.input_tokens + load.output_tokens
        lacks.append(f"a context of {wanted:,} tokens (it has {context:,})")
    elif sizing is not None and sizing["machines"]["expected"] is None and load is not None:
        lacks += _list_exceeded_limits(sizing, load) or _list_missing_tokens(target, load)
    if target["pace"] in ("slow", "batch") and not (load and load.tpot_ms):
        speed = format_figure(_find_slowest_speed(target))
        lacks.append(f"the speed to chat ({speed} tokens/s for each request)")
    if target["cost"]["usd_per_hour"] is None:
        lacks.append("a price")
    return lacks


def _list_exceeded_limits(sizing: Mapping[str, Any], load: Load) -> list[str]:
    ttft, tpot = sizing["ttft_s"]["expected"], sizing["tpot_ms"]["expected"]
    found = []
    if load.ttft_s is not None and (ttft or 0) > load.ttft_s:
        reached = f"{format_figure(ttft)} s with one request alone"
        found.append(f"a first token within {load.ttft_s:g} s (it takes {reached})")
    if load.tpot_ms is not None and (tpot or 0) > load.tpot_ms:
        reached = f"{format_figure(tpot)} ms with one request alone"
        found.append(f"{load.tpot_ms:g} ms between tokens (it takes {reached})")
    return found


def _list_missing_tokens(target: Target, load: Load) -> list[str]:
    """Return the most tokens a day of the requests in flight, if the load needs more."""
    sizing = target["sizing"]
    if sizing is None or sizing["bound_by"] != "tokens_per_day" or load.users is None:
        return []
    most = demand.count_tokens_a_day(target["curve"], load, "expected", load.users)
    each = "the one request" if load.users == 1 else f"{load.users:,} requests"
    gives = (
        f"{each} in flight, each alone on a machine, would give {format_figure(most / 1e6)} million"
    )
    return [f"{load.tokens_per_day:,.0f} output tokens a day ({gives})"]


def _find_slowest_speed(target: Target) -> float | None:
    row = curves.find_row(
        target["curve"], demand.count_requests_at_once(target["plan"], target["sizing"])
    )
    speed: float | None = row["decode_tok_s"]["expected"] if row else None
    return speed


def _find_best_speed(target: Target) -> float:
    return max((row["aggregate_tok_s"]["expected"] or 0 for row in target["curve"]), default=0)


def _rank(entry: RankedTarget, load: Load | None, speed: float) -> tuple[float, ...]:
    """Return a target's key for sorting: the smaller, the better."""
    pace: float = _PACES.index(entry["pace"]) if entry["pace"] in _PACES else len(_PACES)
    if load is not None and not _is_paced(load):
        pace = 0
    group = 3.0 if not entry["serves"] else 0.0 if _is_enough(entry, load) else 1.0
    if entry["by_hand"]:
        group = 2.0
    cost = entry["usd_per_hour"]
    if load is None:
        cost = entry["usd_per_million_output_tokens"]["expected"]
    if load is None:
        pace += _PACES.index(entry["pace_alone"]) / 10 if entry["pace_alone"] in _PACES else 0
    known = 0.0 if cost is not None else 1.0
    machines = entry["machines"] or math.inf
    return (group, pace, known, cost or 0.0, machines, -speed)


def _is_paced(load: Load) -> bool:
    """Whether people wait for the load's answers and it has no limit between tokens."""
    return load.users is not None and load.tpot_ms is None


def _explain_place(
    entry: RankedTarget, load: Load | None, place: int | None, targets: Sequence[Target]
) -> str:
    """Return a sentence that explains a target's place in the order."""
    if entry["by_hand"]:
        return f"It is possible by hand: {entry['lacks'][0]}."
    if not entry["serves"]:
        return f"It cannot serve the model as it stands: {entry['lacks'][0]}."
    if load is not None and entry["machines"] is None:
        return f"No number of them carries the load. It lacks {_get_first(entry['lacks'])}."
    pace = _PACE_WORDS.get(entry["pace"], "")
    if load is None:
        what = (
            f"{format_money(entry['usd_per_million_output_tokens']['expected'])} a million tokens"
        )
    else:
        hour = format_money(entry["usd_per_hour"])
        what = f"{_describe_machines(entry, targets)} for {hour} an hour"
    if entry["priced_by"] is None:
        what = "its cost is not known" + (
            f" ({_describe_machines(entry, targets)})" if load else ""
        )
    elif entry["priced_by"] == "usual rent":
        what += ", by the usual rent of such GPUs, for it has no price"
    first = "" if place or len(targets) == 1 or place is None else ": the first of its pace"
    return f"It is {pace}: {what}{first}."


def _get_first(lacks: Sequence[str]) -> str:
    return lacks[0] if lacks else "what the load asks for"


def _describe_machines(entry: RankedTarget, targets: Sequence[Target]) -> str:
    low, high = entry["machines_low"], entry["machines_high"]
    together = next(hosts.count_target_hosts(t) for t in targets if t["name"] == entry["target"])
    word = hosts.count_machines(entry["machines"] or 0, together)
    if low == high:
        return word
    if high is None:
        return f"{word} ({low:,} or more)"
    return f"{word} ({low:,} to {high:,})"


def _write_sentence(
    ranking: Sequence[RankedTarget],
    best: RankedTarget | None,
    load: Load | None,
    targets: Sequence[Target],
) -> str:
    """Return a sentence that says which target to take, or that none is suitable."""
    said = _answer(ranking, best, load, targets)
    first = best or (ranking[0] if len(ranking) == 1 else None)
    if first is not None:
        lines = ways.describe_ways(_find_target(first, targets))
        said = " ".join([said, *map(format_sentence, lines)])
    by_hand = [entry for entry in ranking if entry["by_hand"]]
    if not by_hand or len(ranking) == 1:
        return said
    names = ", ".join(clean(entry["target"]) for entry in by_hand)
    reasons = "; ".join(dict.fromkeys(entry["lacks"][0] for entry in by_hand))
    return f"{said} Possible by hand: {names} ({reasons})."


def _answer(
    ranking: Sequence[RankedTarget],
    best: RankedTarget | None,
    load: Load | None,
    targets: Sequence[Target],
) -> str:
    models = clean(" and ".join(dict.fromkeys(t["plan"]["model"]["name"] for t in targets)))
    if best is None:
        return _explain_no_answer(ranking, load, models)
    cost = best["usd_per_hour"] if load else best["usd_per_million_output_tokens"]["expected"]
    price = "; its price is not known"
    if cost is not None:
        price = f", {format_money(cost)} {'an hour' if load else 'for a million output tokens'}"
    if best["priced_by"] == "usual rent":
        price += " at the usual rent of its GPUs"
    name = clean(best["target"])
    if load is None:
        pace = _describe_one_and_many(best, _find_target(best, targets))
        done = f"{name} serves {models}, {pace}{price}."
    else:
        machines = f"{_describe_machines(best, targets)} like {name}"
        done = f"For {describe_load(load)} of {models}: {machines}{price}."
    rest = [entry for entry in ranking if entry is not best]
    others = sum(entry["meets"] for entry in rest)
    if not rest:
        return done
    if others == len(rest):
        return f"{done} The other {others if others > 1 else 'one'} can too."
    text = f"{done} {others or 'None'} of the other {len(rest)} can too"
    slow = sum(_is_enough(entry, load) for entry in rest) - others
    if slow:
        text += f"; {slow} more {'are' if slow > 1 else 'is'} too slow to chat"
    return f"{text}."


def _describe_one_and_many(entry: RankedTarget, target: Target) -> str:
    """Describe the pace for one person and for the planned number at once, with both speeds."""
    speed = target["plan"]["throughput"]
    many, alone = speed["concurrency"], speed["single_tok_s"]["expected"]
    each = speed["decode_tok_s"]["expected"]
    if many == 1 or alone is None or each is None:
        return _PACE_WORDS[entry["pace"]]
    words = _PACE_WORDS[entry["pace_alone"]], _PACE_WORDS[entry["pace"]]
    first, second = (f"{format_figure(value)} tokens/s" for value in (alone, each))
    if words[0] == words[1]:
        return f"{words[0]} for one person ({first}) and for {many:,} at once ({second} each)"
    return f"{words[0]} for one person ({first}), {words[1]} with {many:,} at once ({second} each)"


def _explain_no_answer(ranking: Sequence[RankedTarget], load: Load | None, models: str) -> str:
    serving = load is not None and any(entry["serves"] for entry in ranking)
    claim = f"carries {describe_load(load)}" if serving and load else f"serves {models}"
    if len(ranking) > 1:
        return f"None of the {len(ranking)} machines {claim}."
    name, lacks = clean(ranking[0]["target"]), _get_first(ranking[0]["lacks"])
    if ranking[0]["by_hand"]:
        return f"{name} serves {models} by hand alone: {lacks}."
    if not serving:
        return f"{name} cannot serve {models} as it stands: {lacks}."
    return f"No number of {name} {claim}: it lacks {lacks}."


def describe_load(load: Load) -> str:
    """Describe a load in words."""
    parts = []
    if load.people is not None:
        parts.append(f"{load.people:,} people, {load.users or 0:,} of them at once")
    elif load.users is not None:
        parts.append(f"{load.users:,} request{'s' * (load.users != 1)} at once")
    if load.tokens_per_day is not None:
        parts.append(f"{load.tokens_per_day:,.0f} output tokens a day")
    text = " and ".join(parts)
    limits = []
    if load.ttft_s is not None:
        limits.append(f"a first token within {load.ttft_s:g} s")
    if load.tpot_ms is not None:
        limits.append(f"{load.tpot_ms:g} ms between tokens")
    return f"{text} with {' and '.join(limits)}" if limits else text
