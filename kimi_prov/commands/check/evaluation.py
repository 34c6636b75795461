"""Make facts, a plan and a cost of each target of a check."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kimi_prov.catalog import loader
from kimi_prov.commands.check import measured, targets, ways
from kimi_prov.commands.check.options import DEFAULT_MODEL
from kimi_prov.errors import UserError
from kimi_prov.operate.bundle import coverage
from kimi_prov.planner import measurements
from kimi_prov.planner.plan import begin_plan, make_plan_with_curve
from kimi_prov.show.report import check as reports
from kimi_prov.show.report import group_targets
from kimi_prov.show.report.findings import is_possible
from kimi_prov.show.report.prices import find_prices
from kimi_prov.sizing import demand

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kimi_prov.commands.check.options import CheckOptions
    from kimi_prov.contract.documents.check import CheckedTarget, Suggestion
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.errors import ExitCode
    from kimi_prov.runner.connection import ConnectionOptions
    from kimi_prov.sizing.load import Load


def judge_files(paths: Sequence[Path], options: CheckOptions) -> list[CheckedTarget]:
    """Judge targets in files, each with the bench results of its machine."""
    facts = [targets.read(path, "check") for path in paths]
    names = [targets.find_name(path, row) for path, row in zip(paths, facts, strict=True)]
    results = measured.match_results(options.measured, list(zip(names, facts, strict=True)))
    return [
        _judge_file(name, row, given, options)
        for name, row, given in zip(names, facts, results, strict=True)
    ]


def _judge_file(
    name: str,
    facts: Facts,
    results: Sequence[measured.Result],
    options: CheckOptions,
) -> CheckedTarget:
    # Bench results in the file itself were compared with no machine: they are dropped.
    facts = copy.copy(facts)
    facts.pop("bench", None)
    if results:
        facts["bench"] = measured.list_readings(results)
    return _add_ways(_judge(name, facts, options, results), options)


def _add_ways(target: CheckedTarget, options: CheckOptions) -> CheckedTarget:
    """Add the ways that are better, each judged as the target was."""
    most = options.load.users if options.load else None

    def judge(facts: Facts, changed: Mapping[str, object]) -> CheckedTarget:
        chosen = replace(options, variables={**options.variables, **changed})
        return _judge(target["name"], facts, chosen, most=most)

    lanes = ways.describe_lanes(target, judge)
    if lanes is not None:
        target = {**target, "assumptions": [*target["assumptions"], lanes]}
    better = ways.list_ways(target, options.load, options.variables, judge)
    return {**target, "ways": better} if better else target


def _judge(
    name: str,
    facts: Facts,
    options: CheckOptions,
    results: Sequence[measured.Result] = (),
    most: int | None = None,
) -> CheckedTarget:
    """Plan a machine and judge the plan.

    With a load it is planned for one machine's share of the requests. `most`: nobody reads the
    curve beyond so many.
    """
    catalogue, load = loader.load_catalogue(), options.load
    settings = options.settings(name, targets.read_variables(facts))
    if settings.bundle and (system := coverage.find_system(Path(settings.bundle), facts)):
        facts = targets.set_system(facts, system, catalogue)
    plan, add_curve = begin_plan(facts, settings, catalogue)
    measured.refuse_others(results, facts, plan, catalogue)
    closer = None
    if load is not None and "kimi_concurrency" not in options.variables:

        def plan_share(many: int) -> MachinePlan:
            fewer = replace(settings, concurrency=many)
            return make_plan_with_curve(facts, fewer, catalogue, most=most)

        closer = _plan_share(plan, add_curve, plan_share, load)
    plan = closer or add_curve(most)
    settings = replace(settings, concurrency=plan["throughput"]["concurrency"])
    if settings.bundle:
        plan["findings"] = coverage.judge_bundle(
            plan, facts, settings.bundle_key, installs=False, compare=options.compare
        )
    prices = find_prices(facts, catalogue)
    target = reports.build_target(name, facts, plan, options.use, prices, load)
    return reports.add_measurements(
        target, measurements.make_document(facts, plan, settings, catalogue)
    )


def _plan_share(
    plan: MachinePlan,
    add_curve: Callable[[int | None], MachinePlan],
    of_share: Callable[[int], MachinePlan],
    load: Load,
) -> MachinePlan | None:
    """Return the plan for a machine's share of the requests; None where `plan` is no worse."""
    planned = add_curve(load.users)
    share = demand.size_plan(planned, load, serves=is_possible(plan))["requests_a_machine"]
    if share in (None, plan["throughput"]["concurrency"]):
        return None
    closer = of_share(share)
    # A layout for fewer requests may hold fewer: then more machines would be needed.
    return None if _needs_more(closer, planned, load) else closer


def _needs_more(closer: MachinePlan, plan: MachinePlan, load: Load) -> bool:
    machines = [
        demand.size_plan(one, load, serves=is_possible(one))["machines"]["expected"] or math.inf
        for one in (closer, plan)
    ]
    return machines[0] > machines[1]


def judge_suggestions(options: CheckOptions) -> list[CheckedTarget]:
    """Judge the smallest machines of the catalogue that suffice."""
    from kimi_prov.commands.check.suggest import suggest_machines  # noqa: PLC0415  (only who asks pays)

    rows = suggest_machines(loader.load_catalogue(), options.settings("--suggest"), options.load)
    return [
        {
            **_add_ways(_judge(row.offer.name, row.facts, options), options),
            "suggestion": cast("Suggestion", {"kind": row.offer.kind, "smaller": row.smaller}),
        }
        for row in rows
    ]


def judge_inventory(
    path: Path, options: CheckOptions, connection: ConnectionOptions
) -> tuple[list[CheckedTarget], ExitCode]:
    """Probe and plan all hosts of an inventory, several at a time; they are not changed."""
    from kimi_prov.commands.common import playbook_run  # noqa: PLC0415  (Ansible's half second)

    login = playbook_run.PlaybookOptions(connection=connection)
    inventory, request = playbook_run.prepare("check", "plan", path, login, options.variables)
    if not any("kimi_model" in found for found in inventory.hosts.values()):
        request = replace(request, variables={"kimi_model": DEFAULT_MODEL, **options.variables})
    finished = playbook_run.run(request, inventory)
    catalogue, outcome = loader.load_catalogue(), finished.outcome
    rows = []
    for host, plan in group_targets.join_groups(outcome.plans).items():
        facts = outcome.facts[group_targets.find_head(host, plan)]
        prices = find_prices(facts, catalogue)
        row = reports.build_target(host, facts, plan, options.use, prices, options.load)
        own = None if plan.get("group") else inventory.hosts.get(host)
        rows.append(row if own is None else _add_host_ways(row, own, options))
    return rows, playbook_run.conclude(finished)


def _add_host_ways(
    target: CheckedTarget, own: Mapping[str, object], options: CheckOptions
) -> CheckedTarget:
    """Add the ways of a probed host, planned here by its inventory's variables.

    A variable that only Ansible can fill in leaves them out.
    """
    variables = {name: value for name, value in own.items() if name.startswith("kimi_")}
    if any("{{" in str(value) for value in variables.values()):
        return target
    try:
        return _add_ways(target, replace(options, variables={**variables, **options.variables}))
    except UserError:
        return target
