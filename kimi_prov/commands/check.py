"""`kimi-prov check`: each target becomes facts, a plan and a cost, all in one document."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kimi_prov import documents, schemas
from kimi_prov.catalog import loader
from kimi_prov.commands import check_measured
from kimi_prov.console.output import say
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.planner import measurements
from kimi_prov.planner.plan import blockers, make_plan_with_curve
from kimi_prov.planner.settings import parsing
from kimi_prov.report import check as reports
from kimi_prov.report import group_targets
from kimi_prov.report.cost import Use
from kimi_prov.report.forms import renderer
from kimi_prov.report.prices import for_machine
from kimi_prov.sizing import demand
from kimi_prov.sizing import load as loads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kimi_prov.console.output import Output
    from kimi_prov.documents import Document
    from kimi_prov.planner.settings.parsing import Settings
    from kimi_prov.runner.connection import ConnectionOptions
    from kimi_prov.sizing.load import Load

DEFAULT_MODEL = "kimi-k2.5"
# What a spec sheet has at its top, also one whose schema was forgotten.
_SHEET = re.compile(
    r"^(cpus?|processor|memory|ram|gpus?|disks?|storage|nics?|price)\s*:", re.MULTILINE
)
_FIX = "name a spec sheet, a facts file (kimi-prov probe --output FILE) or a recorded folder"
_RECORDED = ("lscpu.json", "cpuinfo.txt", "meminfo.txt", "nvidia-smi-q.xml")
_LARGEST_BYTES = 16 << 20
_FORMS = {
    ".html": "html",
    ".htm": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".json": "json",
}
_READERS = {"kimi-prov/spec/v1": "spec", "kimi-prov/facts/v1": "facts"}


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

    def settings(self, host: str) -> Settings:
        """Return the settings of a target that has none of its own. Raises UserError."""
        variables = {"kimi_model": DEFAULT_MODEL, **self.variables}
        return parsing.parse(variables, host=host, locate=self.option_of)

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


def form_of(file: Path | None) -> str:
    """Give the form that the suffix of the report's file stands for; text where it says none."""
    return "text" if file is None else _FORMS.get(file.suffix.lower(), "text")


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
            "there is nothing to check", fix=f"{_FIX}, or --inventory PATH, or --suggest"
        )
    output.check()
    facts = [_facts(path) for path in paths]
    names = [_name(path, found) for path, found in zip(paths, facts, strict=True)]
    results = check_measured.paired(options.measured, list(zip(names, facts, strict=True)))
    targets = [
        _written(name, found, given, options)
        for name, found, given in zip(names, facts, results, strict=True)
    ]
    codes: list[ExitCode] = []
    for path in inventories:
        found, code = _live(path, options, connection)
        codes.append(code)
        targets += found
    if options.suggest:
        try:
            targets += _suggested(options)
        except UserError as error:
            # What was named is judged all the same.
            if not targets:
                raise
            say(f"--suggest: {error.message}; {error.fix}")
    if targets:
        document = reports.document(targets, options.load)
        output.write(document, lambda: renderer(form)(document))
        codes.append(ExitCode.OK if document["ok"] else ExitCode.BLOCKED)
    return _worst(codes)


def _facts(path: Path) -> dict[str, Any]:
    """Read a target, which is data whatever stands in it. Raises UserError for what is none."""
    if os.path.isdir(path):  # noqa: PTH112  (never raises)
        if not _recorded(path):
            raise _no_target(path, "no recording lies in this folder")
        from kimi_prov.facts import recording  # noqa: PLC0415  (only who has one pays for it)

        return recording.read(path)
    document = _read(path)
    if _kind(path, document.text) == "spec":
        from kimi_prov.facts import spec  # noqa: PLC0415

        return spec.of(document, loader.load())
    from kimi_prov.facts import document as facts  # noqa: PLC0415

    return facts.of(document)


def _read(path: Path) -> Document:
    """Read the text of a target. All reading of files from elsewhere happens here."""
    if path != documents.STANDARD_INPUT and not os.path.lexists(path):
        raise UserError(f"{path}: there is no such file{_near(path)}", fix=_FIX)
    return documents.read(path, what="a target", limit=_LARGEST_BYTES, fix=_FIX)


def _kind(path: Path, text: str) -> str:
    """Tell a "spec" sheet from "facts" by the schema that the text names, else by its keys."""
    schema = schemas.named_in(text)
    json_like = text.lstrip().startswith("{")
    if schema in _READERS:
        return _READERS[schema]
    if schema and schema.startswith("kimi-prov/"):
        raise UserError(
            f"{path}: this is a document {schema}; expected one of {', '.join(_READERS)}", fix=_FIX
        )
    if schema is not None and json_like:
        return "facts"
    if schema is not None or _SHEET.search(text) or (json_like and _sheet_in_json(text)):
        return "spec"
    wanted = " or ".join(_READERS)
    raise _no_target(path, f"this is no spec sheet and no facts file: it names no schema {wanted}")


def _sheet_in_json(text: str) -> bool:
    """Tell whether the keys of a JSON without a schema are those of a spec sheet."""
    from kimi_prov.facts import natural  # noqa: PLC0415

    try:
        return natural.is_sheet(documents.Document("", text).json(""))
    except UserError:
        return False


def _no_target(path: Path, problem: str) -> UserError:
    """Refuse what is no data, and name the option for what may be an inventory."""
    return UserError(
        f"{path}: {problem}",
        fix=f"{_FIX}; Ansible runs what an inventory says, so only one that you wrote or read:  "
        f"kimi-prov check --inventory {shlex.quote(str(path))}",
    )


def _recorded(path: Path) -> bool:
    known = {name + end for name in _RECORDED for end in ("", ".gz")}
    try:
        return any(entry.name in known for entry in path.iterdir())
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror}",
            fix=f"name a folder that you may read: {_FIX}",
        ) from None


def _near(path: Path) -> str:
    """Name the entry of that folder that was probably meant."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.parent / close[0]}?" if close else ""


def _name(path: Path, facts: Mapping[str, Any]) -> str:
    return str((facts.get("origin") or {}).get("name") or path.stem)


def _written(
    name: str,
    facts: Mapping[str, Any],
    results: Sequence[check_measured.Result],
    options: CheckOptions,
) -> dict[str, Any]:
    """Judge a target that lies here as a file, held to what a bench of its machine measured."""
    # What the file itself says of a bench was held against no machine.
    facts = {key: value for key, value in facts.items() if key != "bench"}
    if results:
        facts["bench"] = check_measured.readings(results)
    return _judged(name, facts, options, results)


def _judged(
    name: str,
    facts: Mapping[str, Any],
    options: CheckOptions,
    results: Sequence[check_measured.Result] = (),
) -> dict[str, Any]:
    """Plan a machine and judge the plan.

    With a load it is planned for the requests that come on one of the machines that carry it.
    """
    catalogue, settings, load = loader.load(), _settings(name, facts, options), options.load
    plan = make_plan_with_curve(facts, settings, catalogue)
    check_measured.refuse_others(results, facts, plan, catalogue)
    if load is not None and "kimi_concurrency" not in options.variables:
        share = demand.of_plan(plan, load, serves=not blockers(plan))["requests_a_machine"]
        if share not in (None, settings.concurrency):
            settings = replace(settings, concurrency=share)
            plan = make_plan_with_curve(facts, settings, catalogue)
    prices = for_machine(facts, catalogue)
    target = reports.target(name, facts, plan, options.use, prices, load)
    return reports.with_measured(target, measurements.document(facts, plan, settings, catalogue))


def _settings(name: str, facts: Mapping[str, Any], options: CheckOptions) -> Settings:
    """Give a target's settings: a sheet says how many hosts serve together, an option wins."""
    settings, group = options.settings(name), facts.get("group")
    if group and "kimi_hosts_per_model" not in options.variables:
        return replace(settings, hosts_per_model=int(group["hosts"]))
    return settings


def _suggested(options: CheckOptions) -> list[dict[str, Any]]:
    """Judge the least machines of the catalogue that will do."""
    from kimi_prov.commands.suggest import suggestions  # noqa: PLC0415  (only who asks pays)

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
    from kimi_prov.commands import playbook_run  # noqa: PLC0415  (Ansible's half second)

    login = playbook_run.PlaybookOptions(connection=connection)
    inventory, request = playbook_run.prepare("check", "plan", path, login, options.variables)
    if not any("kimi_model" in found for found in inventory.hosts.values()):
        request = replace(request, variables={"kimi_model": DEFAULT_MODEL, **options.variables})
    finished = playbook_run.run(request, inventory)
    catalogue, outcome = loader.load(), finished.outcome
    targets = []
    for host, plan in group_targets.joined(outcome.plans).items():
        facts = outcome.facts[group_targets.head(host, plan)]
        prices = for_machine(facts, catalogue)
        targets.append(reports.target(host, facts, plan, options.use, prices, options.load))
    return targets, playbook_run.conclude(finished)


def _worst(codes: Sequence[ExitCode]) -> ExitCode:
    from kimi_prov.runner.outcome import PRECEDENCE  # noqa: PLC0415

    return next((code for code in PRECEDENCE if code in codes), ExitCode.OK)
