"""Makes the plan from facts, settings and the catalogue: stand-in, gateways and curve included.

Decides: what a finding is and what its severity does (what stops `apply`).
Decides: the break-even of a purchase (how many requests at once are tried).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kimi_prov.planner import gateways, stand_in
from kimi_prov.planner.hosts import groups
from kimi_prov.planner.machine_plan import plan_machine
from kimi_prov.planner.registry import DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan, Plan
    from kimi_prov.contract.documents.plan.estimates import (
        MoreRequests,
        SpeedsByRequests,
        ThroughputPlan,
    )
    from kimi_prov.planner.gateways import GatewayAddress
    from kimi_prov.planner.hosts.groups import GroupHosts
    from kimi_prov.planner.settings.parsing import Settings

# The curve of a machine has at most so many requests at once.
_MAX_REQUESTS = 4096
# A smaller gain than this may come from the rounding of the estimate.
_MIN_GAIN = 1.01
_CURVE_KEYS = ("concurrency", "decode_tok_s", "aggregate_tok_s", "prefill_tok_s", "ttft_s")
_MORE_REQUESTS_KEYS = ("concurrency", "aggregate_tok_s", "prefill_tok_s")


def make_plan(
    facts: Facts,
    settings: Settings,
    catalogue: Catalogue,
    hosts: GroupHosts | None = None,
    before: Sequence[GatewayAddress] = (),
) -> MachinePlan:
    """Decide everything for one machine. Pure: the same input gives the same plan.

    `hosts`: all hosts that serve the model together, this machine included; without them it is the
    head of `kimi_hosts_per_model` equal ones. `before`: the gateways through which clients connect.
    Apart from the findings, the plan holds nothing that changes by itself: no free memory, no free
    disk space, nothing of what is already converged. Raises UserError for an unknown model.
    """
    return _make_plan(facts, settings, catalogue, hosts, before)[0]


def make_plan_with_curve(
    facts: Facts,
    settings: Settings,
    catalogue: Catalogue,
    hosts: GroupHosts | None = None,
    before: Sequence[GatewayAddress] = (),
    most: int | None = None,
) -> MachinePlan:
    """Make the plan, and add to `throughput` the speeds with more and fewer requests at once.

    `most`: the curve ends with the first number of requests that is not below it. `curve` has
    the speeds for 1, 2, 4, ... requests at once and for the planned number, up to the most that
    run. Up to the planned number they are of this plan. Each larger number gets its own plan;
    the first that the machine cannot serve, or whose context is too short for a request, ends
    the curve. `more_requests` has the points above the planned number, as long as each is
    faster than the one before and the context does not shrink.
    """
    return begin_plan(facts, settings, catalogue, hosts, before)[1](most)


def begin_plan(
    facts: Facts,
    settings: Settings,
    catalogue: Catalogue,
    hosts: GroupHosts | None = None,
    before: Sequence[GatewayAddress] = (),
) -> tuple[MachinePlan, Callable[[int | None], MachinePlan]]:
    """Make the plan, and a function that adds its curve for up to so many requests."""
    plan, speeds = _make_plan(facts, settings, catalogue, hosts, before)

    def add_curve(most: int | None) -> MachinePlan:
        points = _make_curve(plan, speeds, facts, settings, catalogue, hosts, most)
        return _add_curve(plan, points, settings.concurrency)

    return plan, add_curve


def _add_curve(plan: MachinePlan, points: Sequence[_CurvePoint], planned: int) -> MachinePlan:
    """Add the points to the plan, and those above the planned number that bring more."""
    rows: list[SpeedsByRequests] = [
        {
            "concurrency": point.row["concurrency"],
            "decode_tok_s": point.row["decode_tok_s"],
            "aggregate_tok_s": point.row["aggregate_tok_s"],
            "prefill_tok_s": point.row["prefill_tok_s"],
            "ttft_s": point.row["ttft_s"],
        }
        for point in points
    ]
    more: list[MoreRequests] = []
    best = plan["throughput"]["aggregate_tok_s"]["expected"] or 0.0
    for row, point in zip(rows, points, strict=True):
        if row["concurrency"] > planned:
            speed = row["aggregate_tok_s"]["expected"] or 0.0
            if point.context < plan["model"]["context"] or speed < best * _MIN_GAIN:
                break
            best = speed
            more.append(
                {
                    "concurrency": row["concurrency"],
                    "aggregate_tok_s": row["aggregate_tok_s"],
                    "prefill_tok_s": row["prefill_tok_s"],
                }
            )
    return {**plan, "throughput": {**plan["throughput"], "more_requests": more, "curve": rows}}


class _CurvePoint(NamedTuple):
    """A plan's `throughput` for a number of requests at once, and that plan's context."""

    row: ThroughputPlan
    context: int


def _make_curve(
    plan: MachinePlan,
    speeds: Callable[[int], ThroughputPlan],
    facts: Facts,
    settings: Settings,
    catalogue: Catalogue,
    hosts: GroupHosts | None,
    enough: int | None = None,
) -> list[_CurvePoint]:
    """Compute a point for each number of requests at once, up to the first that is `enough`."""
    planned, known = settings.concurrency, {row["id"] for row in find_blockers(plan)}
    # A context that the inventory sets must not shrink; a chosen one has to hold a request.
    context: int = plan["model"]["context"]
    least = min(context, settings.request_tokens) if settings.auto("context") else context

    def plan_point(many: int) -> _CurvePoint | None:
        if many <= planned:
            return _CurvePoint(speeds(many), context)
        other, _ = _make_plan(facts, replace(settings, concurrency=many), catalogue, hosts)
        refused = {row["id"] for row in find_blockers(other)} - known
        if refused or other["model"]["context"] < least:
            return None
        return _CurvePoint(other["throughput"], other["model"]["context"])

    points: list[_CurvePoint] = []
    doubled = (1 << power for power in range(_MAX_REQUESTS.bit_length()))
    for many in sorted({planned, *doubled}):
        point = plan_point(many)
        if point is None or not point.row["decode_tok_s"]["expected"]:
            break
        most = point.row["running"]
        if most < many:
            if points and most > points[-1].row["concurrency"]:
                last = plan_point(most)
                points += [last] if last else []
            break
        points.append(point)
        if enough is not None and many >= max(enough, planned):
            break
    return points


def _make_plan(
    facts: Facts,
    settings: Settings,
    catalogue: Catalogue,
    hosts: GroupHosts | None,
    before: Sequence[GatewayAddress] = (),
) -> tuple[MachinePlan, Callable[[int], ThroughputPlan]]:
    """Make the plan, and a function that returns its `throughput` for a number of requests."""
    hosts = hosts or groups.make_equal_group(facts, settings)
    group = hosts.group(catalogue) if hosts else None
    settings = groups.adjust_settings(settings, group)
    elsewhere = gateways.check_web_ui(settings, before)
    settings = gateways.limit_to_gateways(settings, before)
    made, speeds = plan_machine(facts, settings, catalogue, group)
    if settings.engine_stand_in:
        instead = stand_in.adjust_settings(settings, made["model"]["served_names"])
        small = hosts.with_facts(stand_in.remove_gpus).group(catalogue) if hosts else None
        served = plan_machine(stand_in.remove_gpus(facts), instead, catalogue, small)[0]
        made = stand_in.merge_plans(made, served)
    if before:
        made["gateways"] = gateways.make_document(before)
        made["paths"] = {**made["paths"], **gateways.list_usage_paths()}
        made["findings"] = [*made["findings"], *elsewhere]
    return made, speeds


def find_blockers(plan: Plan) -> list[Finding]:
    """Return the findings of severity blocker."""
    return [row for row in plan["findings"] if row["severity"] == "blocker"]


def find_refusals(plan: Plan) -> list[Finding]:
    """Return the findings that forbid `apply`: blockers, and plans that this version cannot apply.

    The latter do not make a buyer's plan wrong, but a machine must not be half provisioned. A
    finding that `apply` itself fixes does not forbid it.
    """
    not_applied: list[Finding] = [
        {**row, "severity": "blocker"}
        for row in plan["findings"]
        if DEFINITIONS[row["id"]].blocks_apply and row["severity"] != "blocker"
    ]
    fixed: set[str | None] = {"always", *(["driver"] if plan["driver"]["action"] != "none" else [])}
    found = [*find_blockers(plan), *not_applied]
    return [row for row in found if DEFINITIONS[row["id"]].fixed_by_apply not in fixed]
