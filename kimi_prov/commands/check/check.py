"""`kimi-prov check`: each target becomes facts, a plan and a cost, all in one document."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog import loader
from kimi_prov.commands.check import measured, targets
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.planner import measurements
from kimi_prov.planner.plan import find_blockers, make_plan_with_curve
from kimi_prov.planner.settings import parsing
from kimi_prov.show.output import say
from kimi_prov.show.report import check as reports
from kimi_prov.show.report import group_targets
from kimi_prov.show.report.cost import Use
from kimi_prov.show.report.forms import renderer
from kimi_prov.show.report.prices import for_machine
from kimi_prov.sizing import demand
from kimi_prov.sizing import load as loads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kimi_prov.planner.settings.parsing import Settings
    from kimi_prov.runner.connection import ConnectionOptions
    from kimi_prov.show.output import Output
    from kimi_prov.sizing.load import Load

DEFAULT_MODEL = "kimi-k2.5"


@dataclass(frozen=True)
class CheckOptions:
    """Options of the command line: settings by their variable's name, only those given.

    `load` is what shall be carried, `suggest` asks for machines of the catalogue too.
    """

    variables: Mapping[str, Any]
    use: Use
    load: Load | None = None
    suggest: bool = False
    measured: tuple[Path, ...] = ()

    def settings(self, host: str, own: Mapping[str, Any] | None = None) -> Settings:
        """Return a target's settings; options win over its `own` variables. Raises UserError."""
        variables = {"kimi_model": DEFAULT_MODEL, **(own or {}), **self.variables}
        return parsing.parse_settings(variables, host=host, locate=self.option_of)

    def option_of(self, variable: str) -> str | None:
        """Return the option that gave a variable, for messages about its value."""
        option = "--" + variable.removeprefix("kimi_").replace("_", "-")
        return option if variable in self.variables else None


def options(
    *,
    amortise_years: float | None,
    utilisation: float | None,
    power_price: float | None,
    load_file: Path | None = None,
    suggest: bool = False,
    measured: tuple[Path, ...] = (),
    **named: object,
) -> CheckOptions:
    """Sort the options of the command line; None stands for one that was not given.

    Raises UserError for a load file that is none, and for users together with a concurrency.
    """
    given = {name: value for name, value in named.items() if value is not None}
    asked = {name: given.pop(name) for name in loads.NAMES if name in given}
    variables = {f"kimi_{name}": value for name, value in given.items()}
    use = Use(amortise_years, utilisation, power_price)
    found = CheckOptions(variables, use, suggest=suggest, measured=measured)
    if load_file is not None:
        from kimi_prov.sizing import load_file as files  # noqa: PLC0415

        asked = {**files.read(load_file), **asked}
    if not asked:
        return found
    if "users" in asked and "kimi_concurrency" in variables:
        raise UserError(
            "--users and --concurrency exclude each other: both say how many requests there are",
            fix="give --users N for the machines that carry N requests, or --concurrency N for "
            "one machine that serves N",
        )
    load = loads.of(asked, found.settings("--concurrency").concurrency)
    if load is None:
        return found
    lengths = {"kimi_input_tokens": load.input_tokens, "kimi_output_tokens": load.output_tokens}
    return replace(found, variables={**variables, **lengths}, load=load)


def run(
    paths: Sequence[Path],
    inventories: Sequence[Path],
    options: CheckOptions,
    output: Output,
    form: str,
    connection: ConnectionOptions,
) -> ExitCode:
    """Judge every target and write one report; exit 3 where any of them has a blocker.

    `paths` hold data. Ansible reads `inventories`, and nothing else. `form`: text, json, markdown
    or html.
    """
    if not (paths or inventories or options.suggest):
        raise UserError(
            "there is nothing to check",
            fix=f"{targets.KINDS}, or --inventory PATH, or --suggest",
        )
    output.check()
    facts = [targets.facts(path, "check") for path in paths]
    names = [targets.name(path, found) for path, found in zip(paths, facts, strict=True)]
    results = measured.paired(options.measured, list(zip(names, facts, strict=True)))
    rows = [
        _written(name, found, given, options)
        for name, found, given in zip(names, facts, results, strict=True)
    ]
    codes: list[ExitCode] = []
    for path in inventories:
        found, code = _live(path, options, connection)
        codes.append(code)
        rows += found
    if options.suggest:
        try:
            rows += _suggested(options)
        except UserError as error:
            # What was named is judged all the same.
            if not rows:
                raise
            say(f"--suggest: {error.message}; {error.fix}")
    if rows:
        document = reports.document(rows, options.load)
        output.write(document, lambda: renderer(form)(document))
        codes.append(ExitCode.OK if document["ok"] else ExitCode.BLOCKED)
    return _worst(codes)


def _written(
    name: str,
    facts: Mapping[str, Any],
    results: Sequence[measured.Result],
    options: CheckOptions,
) -> dict[str, Any]:
    """Judge a target that lies here as a file, held to what a bench of its machine measured."""
    # What the file itself says of a bench was held against no machine.
    facts = {key: value for key, value in facts.items() if key != "bench"}
    if results:
        facts["bench"] = measured.readings(results)
    return _judged(name, facts, options, results)


def _judged(
    name: str,
    facts: Mapping[str, Any],
    options: CheckOptions,
    results: Sequence[measured.Result] = (),
) -> dict[str, Any]:
    """Plan a machine and judge the plan.

    With a load it is planned for the requests that come on one of the machines that carry it.
    """
    catalogue, load = loader.load(), options.load
    settings = options.settings(name, targets.says(facts))
    plan = make_plan_with_curve(facts, settings, catalogue)
    measured.refuse_others(results, facts, plan, catalogue)
    if load is not None and "kimi_concurrency" not in options.variables:
        share = demand.of_plan(plan, load, serves=not find_blockers(plan))["requests_a_machine"]
        if share not in (None, settings.concurrency):
            settings = replace(settings, concurrency=share)
            plan = make_plan_with_curve(facts, settings, catalogue)
    prices = for_machine(facts, catalogue)
    target = reports.target(name, facts, plan, options.use, prices, load)
    return reports.with_measured(
        target, measurements.make_document(facts, plan, settings, catalogue)
    )


def _suggested(options: CheckOptions) -> list[dict[str, Any]]:
    """Judge the least machines of the catalogue that will do."""
    from kimi_prov.commands.check.suggest import suggestions  # noqa: PLC0415  (only who asks pays)

    found = suggestions(loader.load(), options.settings("--suggest"), options.load)
    return [
        {
            **_judged(one.offer.name, one.facts, options),
            "suggestion": {"kind": one.offer.kind, "smaller": one.smaller},
        }
        for one in found
    ]


def _live(
    path: Path, options: CheckOptions, connection: ConnectionOptions
) -> tuple[list[dict[str, Any]], ExitCode]:
    """Probe and plan all hosts of an inventory, several at a time; nothing on them is changed."""
    from kimi_prov.commands.common import playbook_run  # noqa: PLC0415  (Ansible's half second)

    login = playbook_run.PlaybookOptions(connection=connection)
    inventory, request = playbook_run.prepare("check", "plan", path, login, options.variables)
    if not any("kimi_model" in found for found in inventory.hosts.values()):
        request = replace(request, variables={"kimi_model": DEFAULT_MODEL, **options.variables})
    finished = playbook_run.run(request, inventory)
    catalogue, outcome = loader.load(), finished.outcome
    rows = []
    for host, plan in group_targets.joined(outcome.plans).items():
        facts = outcome.facts[group_targets.head(host, plan)]
        prices = for_machine(facts, catalogue)
        rows.append(reports.target(host, facts, plan, options.use, prices, options.load))
    return rows, playbook_run.conclude(finished)


def _worst(codes: Sequence[ExitCode]) -> ExitCode:
    from kimi_prov.runner.outcome import PRECEDENCE  # noqa: PLC0415

    return next((code for code in PRECEDENCE if code in codes), ExitCode.OK)
