"""The check document: each target's facts, plan, findings, cost and size, and the answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

from kimi_prov.facts.spec import NOT_USED
from kimi_prov.show.report import cost, measured, recommendation
from kimi_prov.show.report.findings import filter_severity, is_possible
from kimi_prov.sizing import curve as curves
from kimi_prov.sizing import demand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.check import Assumption, Check, CheckedTarget
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.show.report.cost import MachinePrices, Use
    from kimi_prov.sizing.load import Load


SCHEMA: Final = "kimi-prov/check/v1"
_KINDS = {
    "probe": "probed on the machine itself",
    "recording": "recorded output of the machine, not probed live",
    "spec": "a spec sheet: what was promised, nothing was measured",
    "made": "made up for a test",
    "suggested": "made from the catalogue: no vendor has offered it",
}


def build_document(targets: Sequence[CheckedTarget], load: Load | None = None) -> Check:
    """Build the document of targets; `ok` is false if one has a blocker. Names become unique.

    `load` is the load that they were judged for.
    """
    named: list[CheckedTarget] = []
    taken: set[str] = set()
    for target in targets:
        name, number = str(target["name"]), 2
        while name in taken:
            name, number = f"{target['name']} ({number})", number + 1
        taken.add(name)
        named.append({**target, "name": name})
    blocked = any(filter_severity(target, "blocker") for target in named)
    return {
        "schema": SCHEMA,
        "ok": not blocked,
        "load": load.document() if load else None,
        "answer": recommendation.build_answer(named, load),
        "targets": named,
    }


def build_target(
    name: str,
    facts: Facts,
    plan: MachinePlan,
    use: Use,
    known: MachinePrices,
    load: Load | None = None,
) -> CheckedTarget:
    """Build the entry of one target. The plan is the planner's own, with its findings."""
    curve = curves.read_curve(plan["throughput"])
    possible = is_possible(plan)
    sizing = demand.size_plan(plan, load, serves=possible) if load else None
    daily = demand.compute_use(curve, load, sizing) if load and sizing else None
    costs, assumed = cost.compute_cost(facts, plan, use, known, load, daily)
    return {
        "name": name,
        "facts": facts,
        "plan": plan,
        "findings": plan["findings"],
        "curve": curve,
        "pace": curves.classify_pace(curve, demand.count_requests_at_once(plan, sizing))
        if possible
        else "blocked",
        "sizing": sizing,
        "cost": costs,
        "assumptions": [
            *_list_origins(facts),
            *_list_people(load, known),
            *_list_speed_notes(plan),
            *assumed,
        ],
        "measured": [],
        "effect": None,
    }


def add_measurements(target: CheckedTarget, found: Mapping[str, Any] | None) -> CheckedTarget:
    """Add the machine's measurements and their effect on its prediction, if there are any."""
    if found is None:
        return target
    what, _, value = measured.describe_measurements(found).partition(": ")
    row = _build_row(what, value, measured.SOURCE)
    return cast("CheckedTarget", {**target, **found, "assumptions": [*target["assumptions"], row]})


def _list_origins(facts: Facts) -> list[Assumption]:
    """Describe the source of the facts, and the facts that the catalogue filled in."""
    origin = facts.get("origin")
    rows = []
    if origin and origin.get("kind"):
        detail = str(origin.get("detail") or origin.get("name") or "")
        rows.append(_build_row("The machine", _KINDS.get(origin["kind"], origin["kind"]), detail))
    by_source: dict[str, list[str]] = {}
    for key, source in (facts.get("origins") or {}).items():
        if source == NOT_USED:
            rows.append(_build_row("Not used", str(key), "the sheet"))
            continue
        # Values of the sheet itself are no assumptions; equal parts are listed once.
        if source != "sheet":
            by_source.setdefault(str(source), []).append(re.sub(r"\[\d+\]", "", str(key)))
    rows += [
        _build_row("Not given, filled in", ", ".join(dict.fromkeys(keys)), source)
        for source, keys in by_source.items()
    ]
    return rows


def _list_people(load: Load | None, known: MachinePrices) -> list[Assumption]:
    if load is None or load.people is None:
        return []
    share = known.assumed["people_in_flight"]
    value = f"{share.value:.0%} of {load.people:,} have a request in flight at the busiest time"
    return [_build_row("People", value, share.source)]


def _list_speed_notes(plan: MachinePlan) -> list[Assumption]:
    if plan["throughput"]["decode_tok_s"]["expected"] is None:
        return []
    value = "estimated, not measured; the range is where a measurement is expected"
    return [_build_row("Speed", value, str(plan["throughput"]["basis"]))]


def _build_row(what: str, value: str, source: str) -> Assumption:
    return {"what": what, "value": value, "source": source}
