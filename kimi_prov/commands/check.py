"""`kimi-prov check`: each target becomes facts, a plan and a cost, all in one document."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog import loader
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.planner.plan import make_plan, with_more_requests
from kimi_prov.planner.settings import parsing
from kimi_prov.report import check as documents
from kimi_prov.report.cost import Use
from kimi_prov.report.forms import renderer
from kimi_prov.report.prices import for_machine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kimi_prov.console.output import Output

DEFAULT_MODEL = "kimi-k2.5"
# What only an inventory has at its top, and what only a spec sheet has.
_GROUPS = re.compile(r"^(all|kimi|ungrouped)\s*:", re.MULTILINE)
_SHEET = re.compile(r"^(schema|cpu|memory|gpus|disks|price)\s*:", re.MULTILINE)
_LOOK = 65536
_FIX = (
    "name a spec sheet, a facts file (kimi-prov probe --output FILE), or an inventory "
    "(kimi-prov init DIR --profile localhost)"
)
_RECORDED = ("lscpu.json", "cpuinfo.txt", "meminfo.txt", "nvidia-smi-q.xml")


@dataclass(frozen=True)
class CheckOptions:
    """Options of the command line: settings by their variable's name, only those given."""

    variables: Mapping[str, Any]
    use: Use


def options(
    *,
    amortise_years: float | None,
    utilisation: float | None,
    power_price: float | None,
    **named: object,
) -> CheckOptions:
    """Sort the options of the command line; None stands for one that was not given."""
    variables = {f"kimi_{name}": value for name, value in named.items() if value is not None}
    return CheckOptions(variables, Use(amortise_years, utilisation, power_price))


def run(paths: Sequence[Path], options: CheckOptions, output: Output, form: str) -> ExitCode:
    """Judge every target and write one report; exit 3 where any of them has a blocker.

    `form`: text, json, markdown or html.
    """
    output.check()
    kinds = [(path, kind_of(path)) for path in paths]
    targets: list[dict[str, Any]] = []
    codes: list[ExitCode] = []
    for path, kind in kinds:
        if kind == "inventory":
            found, code = _live(path, options)
            codes.append(code)
            targets += found
        else:
            targets.append(_written(path, kind, options))
    if targets:
        document = documents.document(targets)
        output.write(document, lambda: renderer(form)(document))
        codes.append(ExitCode.OK if document["ok"] else ExitCode.BLOCKED)
    return _worst(codes)


def kind_of(path: Path) -> str:
    """Tell a "spec" sheet, a "facts" file, a "recording" and an "inventory" apart by content."""
    if path.is_dir():
        return _folder(path)
    try:
        with path.open(encoding="utf-8") as stream:
            text = stream.read(_LOOK)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file{_near(path)}", fix=_FIX) from None
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror}",
            fix=f"name a file that you may read: {_FIX}",
        ) from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: this is no text in UTF-8", fix=_FIX) from None
    if text.lstrip().startswith("{"):
        return "facts" if not re.search(r'"(_meta|all|kimi)"\s*:\s*{', text[:400]) else "inventory"
    if _SHEET.search(text) and not _GROUPS.search(text):
        return "spec"
    return "inventory"


def _folder(path: Path) -> str:
    known = {name + end for name in _RECORDED for end in ("", ".gz")}
    return "recording" if any((path / name).is_file() for name in known) else "inventory"


def _near(path: Path) -> str:
    """Name the entry of that folder that was probably meant."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.parent / close[0]}?" if close else ""


def _written(path: Path, kind: str, options: CheckOptions) -> dict[str, Any]:
    """Judge a target that lies here as a file."""
    facts = _facts(path, kind)
    name = str((facts.get("origin") or {}).get("name") or path.stem)
    variables = {"kimi_model": DEFAULT_MODEL, **options.variables}
    catalogue = loader.load()
    settings = parsing.parse(variables, host=name)
    plan = make_plan(facts, settings, catalogue)
    plan = with_more_requests(plan, facts, settings, catalogue)
    return documents.target(name, facts, plan, options.use, for_machine(facts, catalogue))


def _facts(path: Path, kind: str) -> dict[str, Any]:
    if kind == "spec":
        from kimi_prov.facts import spec  # noqa: PLC0415  (only who has one pays for it)

        return spec.read(path, loader.load())
    if kind == "recording":
        from kimi_prov.facts import recording  # noqa: PLC0415

        return recording.read(path)
    from kimi_prov.facts import document as facts  # noqa: PLC0415

    return facts.read(path)


def _live(path: Path, options: CheckOptions) -> tuple[list[dict[str, Any]], ExitCode]:
    """Probe and plan all hosts of an inventory, several at a time; nothing on them is changed."""
    from kimi_prov.commands import playbook_run  # noqa: PLC0415  (Ansible's half second)

    inventory, request = playbook_run.prepare(
        "check", "plan", path, playbook_run.PlaybookOptions(), options.variables
    )
    if not any("kimi_model" in found for found in inventory.hosts.values()):
        request = replace(request, variables={"kimi_model": DEFAULT_MODEL, **options.variables})
    finished = playbook_run.run(request, inventory)
    catalogue, outcome = loader.load(), finished.outcome
    targets = []
    for host, plan in outcome.plans.items():
        facts = outcome.facts[host]
        prices = for_machine(facts, catalogue)
        targets.append(documents.target(host, facts, plan, options.use, prices))
    return targets, playbook_run.conclude(finished)


def _worst(codes: Sequence[ExitCode]) -> ExitCode:
    from kimi_prov.runner.outcome import PRECEDENCE  # noqa: PLC0415

    return next((code for code in PRECEDENCE if code in codes), ExitCode.OK)
