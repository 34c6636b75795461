"""Facts, settings and the catalogue become the plan, with stand-in, gateways and curve.

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

# More requests at once than that say nothing of a single machine.
_MAX_REQUESTS = 4096
# A gain below that is the estimate's own rounding.
_MIN_GAIN = 1.01
# Speeds have three figures: what the cache holds of the requests is known as well as that.
_ALL_RUNNING_SHARE = 0.985
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

    `hosts`: those that serve the model together with it, itself among them; without them it is one
    of `kimi_hosts_per_model` equal ones, the head. `before`: the gateways through which clients
    come. Nothing that moves by itself (free memory, free disk, what is converged already) is in the
    plan, findings aside. Raises UserError for an unknown model.
    """
    return _make_plan(facts, settings, catalogue, hosts, before)[0]


def make_plan_with_curve(
    facts: Facts,
    settings: Settings,
    catalogue: Catalogue,
    hosts: GroupHosts | None = None,
    before: Sequence[GatewayAddress] = (),
) -> MachinePlan:
    """Plan as `make_plan`, and add to `throughput` what more and fewer requests at once do.

    `curve`: speeds of 1, 2, 4, ... requests at once and of the planned number, up to as many as
    run. Up to the planned number they are of the machine as planned, above it of a plan of their
    own; one that the machine does not serve, or whose context does not hold such a request, ends
    the curve. `more_requests`: those above the planned number, as long as they gain and the context
    stays.
    """
    plan, speeds = _make_plan(facts, settings, catalogue, hosts, before)
    points = _make_curve(plan, speeds, facts, settings, catalogue, hosts)
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
        if row["concurrency"] > settings.concurrency:
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
    """A plan's `throughput` for a number of requests at once, and the context it has then."""

    row: ThroughputPlan
    context: int


def _make_curve(
    plan: MachinePlan,
    speeds: Callable[[int], ThroughputPlan],
    facts: Facts,
    settings: Settings,
    catalogue: Catalogue,
    hosts: GroupHosts | None,
) -> list[_CurvePoint]:
    """Give a point for each number of requests at once."""
    planned, known = settings.concurrency, {row["id"] for row in find_blockers(plan)}
    # A context that was asked for stays; one that was chosen has to hold a request.
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
        total = point.row["aggregate_tok_s"]["expected"] or 0.0
        running = total / point.row["decode_tok_s"]["expected"]
        if running < many * _ALL_RUNNING_SHARE:
            most = round(running)
            if points and most > points[-1].row["concurrency"]:
                last = plan_point(most)
                points += [last] if last else []
            break
        points.append(point)
    return points


def _make_plan(
    facts: Facts,
    settings: Settings,
    catalogue: Catalogue,
    hosts: GroupHosts | None,
    before: Sequence[GatewayAddress] = (),
) -> tuple[MachinePlan, Callable[[int], ThroughputPlan]]:
    """Give the plan, and what gives its `throughput` with so many requests at once."""
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
    """Return the findings that forbid to go on."""
    return [row for row in plan["findings"] if row["severity"] == "blocker"]


def find_refusals(plan: Plan) -> list[Finding]:
    """Return what forbids `apply`: the blockers, and what this version plans but cannot apply.

    The plan is a true answer for a buyer without these; a machine must not be half provisioned.
    What `apply` itself fixes does not forbid it.
    """
    not_applied: list[Finding] = [
        {**row, "severity": "blocker"}
        for row in plan["findings"]
        if DEFINITIONS[row["id"]].blocks_apply and row["severity"] != "blocker"
    ]
    fixed: set[str | None] = {"always", *(["driver"] if plan["driver"]["action"] != "none" else [])}
    found = [*find_blockers(plan), *not_applied]
    return [row for row in found if DEFINITIONS[row["id"]].fixed_by_apply not in fixed]
