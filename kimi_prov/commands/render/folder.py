"""`kimi-prov render`: write a plan as files that a person reads, keeps and changes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from kimi_prov import documents
from kimi_prov.catalog import loader
from kimi_prov.commands.check import targets
from kimi_prov.commands.check.options import DEFAULT_MODEL
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import CATALOG, MODEL, PATH, add_model_options, add_options
from kimi_prov.contract import clean_text
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.facts.gres import read_gres
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings import parsing
from kimi_prov.planner.settings.locate import make_locator
from kimi_prov.render import folder_writer
from kimi_prov.show.output import say
from kimi_prov.show.text.findings import format_wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.planner.settings.parsing import Settings
    from kimi_prov.runner.connection import ConnectionOptions

_MAX_BYTES = 1 << 20
_PREFIX = re.compile(r"^kimi_(slurm_|kubernetes_|cloud_)?")
# What scontrol prints of a node or a partition, in place of a file of variables.
_SCONTROL = re.compile(r"\s*(?:NodeName|PartitionName)=\S")
_SCONTROL_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z]*)=(\S+)")
_VARS_FIX = "write a mapping such as  kimi_slurm_root: /project/ab12/kimi"


class RenderCommand(Command):
    """A command that renders a folder for a target or for a host of an inventory."""

    either = ("target", "inventory")


# A decorator with the options of every kind of rendered folder.
add_render_options = add_options(
    click.argument("target", type=PATH, required=False),
    click.option(
        "--inventory",
        type=PATH,
        metavar="PATH",
        help="Probe a host of an inventory instead; Ansible runs what it says.",
    ),
    click.option("--host", metavar="NAME", help="The host of the inventory, if it has several."),
    click.option(
        "--output", type=PATH, required=True, metavar="DIR", help="The folder that is written."
    ),
    click.option(
        "--vars",
        "vars_file",
        type=PATH,
        metavar="FILE",
        help="YAML with variables kimi_*; options win over it.",
    ),
    click.option("--force", is_flag=True, help="Overwrite files that were changed by hand, too."),
    CATALOG,
    MODEL,
    add_model_options,
)


@dataclass(frozen=True)
class RenderOptions:
    """The target folder, and the variables of options and of a file with its path."""

    output: Path
    force: bool = False
    named: Mapping[str, Any] = field(default_factory=dict)
    from_file: Mapping[str, Any] = field(default_factory=dict)
    file: Path | None = None

    @property
    def variables(self) -> dict[str, Any]:
        """All variables; options override the file."""
        return {**self.from_file, **self.named}

    def settings(
        self, host: str, own: Mapping[str, Any] | None = None, base: Path | None = None
    ) -> Settings:
        """Return the settings of a target. Raises UserError, with file and line of a mistake.

        `own`: the variables of an inventory or a target's file; their relative paths start at
        `base`. The operator's options override them.
        """
        in_file = make_locator([self.file] if self.file else [])

        def locate(name: str) -> str | None:
            if name in self.named:
                return "--" + _PREFIX.sub("", name).replace("_", "-")
            return in_file(name) if name in self.from_file else None

        base = self.file.parent if self.file else base
        variables = {"kimi_model": DEFAULT_MODEL, **(own or {}), **self.variables}
        return parsing.parse_settings(variables, host=host, base=base, locate=locate)


@dataclass(frozen=True)
class Kind:
    """A kind of rendered folder.

    `require` raises UserError for missing settings; `settings` returns those that count there,
    `findings` those of a plan that hold, `render` the files, `describe` the next step.
    """

    name: str
    require: Callable[[Settings], None]
    settings: Callable[[Settings], Settings]
    findings: Callable[[str, MachinePlan, Settings, Facts, Catalogue], Sequence[Finding]]
    render: Callable[
        [str, MachinePlan, Sequence[Finding], Settings, Facts, Catalogue],
        folder_writer.RenderedFolder,
    ]
    describe: Callable[[Path, int], str]


def render(  # noqa: PLR0913  (one for each option)
    kind: Kind,
    *,
    target: Path | None,
    inventory: Path | None,
    host: str | None,
    connection: ConnectionOptions,
    output: Path,
    force: bool,
    vars_file: Path | None,
    **variables: object,
) -> ExitCode:
    """Render a folder for the machine that the options describe."""
    if target is not None and inventory is not None:
        raise click.UsageError("give TARGET or --inventory PATH, not both")
    if host is not None and inventory is None:
        raise click.UsageError("--host belongs to --inventory PATH.")
    named = {f"kimi_{name}": value for name, value in variables.items() if value is not None}
    chosen = RenderOptions(output, force, named, _read_variables(vars_file), vars_file)
    if target is not None:
        return _render_target(target, kind, chosen)
    assert inventory is not None  # noqa: S101  (one of the two)
    return _render_inventory(inventory, host, kind, chosen, connection)


def _read_variables(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    document = documents.read_document(
        path, what="a file of variables", limit=_MAX_BYTES, fix=_VARS_FIX
    )
    _refuse_slurm(document)
    variables = document.yaml(_VARS_FIX) or {}
    if not isinstance(variables, dict):
        raise UserError(f"{path}: this is no mapping of variables", fix=_VARS_FIX)
    for name in variables:
        if not str(name).startswith("kimi_"):
            line = documents.find_line(document.text, (name,))
            raise UserError(
                f"{path}{f':{line}' if line else ''}: {clean_text.clean_line(name)}: expected a "
                "variable kimi_...",
                fix="remove it; docs/reference/variables.md lists all variables",
            )
    return {str(name): value for name, value in variables.items()}


def _refuse_slurm(document: documents.Document) -> None:
    """Refuse what scontrol printed, with the variables that it stands for."""
    if not _SCONTROL.match(document.text):
        return
    fields = dict(reversed(_SCONTROL_FIELD.findall(document.text)))
    node = fields.get("NodeName")
    partition = (fields.get("PartitionName") or fields.get("Partitions", "")).split(",")[0]
    values = {
        "gres": read_gres(fields.get("Gres", "")).request,
        "partition": partition,
        "time": fields.get("MaxTime", ""),
    }
    lines = [f'kimi_slurm_{name}: "{value}"' for name, value in values.items() if value]
    fix = f"write instead, each on a line:  {'  '.join(lines)}" if lines else _VARS_FIX
    if node:
        fix += f" ; the node itself is a target:  kimi-prov render slurm {document.name}"
    raise UserError(f"{document.name}: this is what scontrol prints, no YAML", fix=fix)


def _render_target(path: Path, kind: Kind, chosen: RenderOptions) -> ExitCode:
    """Render for a machine that a file describes."""
    folder_writer.check_folder(chosen.output, kind.name)
    facts = targets.read(path, f"render {kind.name}")
    name = targets.find_name(path, facts)
    settings = chosen.settings(name, targets.read_variables(facts))
    return _render(name, facts, settings, kind, chosen)


def _render_inventory(
    path: Path,
    host: str | None,
    kind: Kind,
    chosen: RenderOptions,
    connection: ConnectionOptions,
) -> ExitCode:
    """Probe a host and render for it; the host is not changed."""
    from kimi_prov.commands.common import playbook_run  # noqa: PLC0415  (Ansible's half second)

    folder_writer.check_folder(chosen.output, kind.name)
    login = playbook_run.PlaybookOptions(limit=host, connection=connection)
    # The node is planned as a machine: the playbook needs no settings of a job or pod.
    inventory, request = playbook_run.prepare("render", "plan", path, login, chosen.named)
    if not any("kimi_model" in found for found in inventory.hosts.values()):
        request = replace(request, variables={"kimi_model": DEFAULT_MODEL, **chosen.variables})
    finished = playbook_run.run(request, inventory)
    planned = list(finished.outcome.facts)
    code = playbook_run.conclude(finished)
    if len(planned) > 1:
        raise UserError(
            f"{path}: the inventory has {len(planned)} hosts: {', '.join(sorted(planned))}",
            fix="name one of them with --host NAME; the others are assumed to be equal",
        )
    if not planned:
        return code
    name = planned[0]
    own = {k: v for k, v in inventory.hosts[name].items() if str(k).startswith("kimi_")}
    settings = chosen.settings(name, own, inventory.base)
    return _render(name, finished.outcome.facts[name], settings, kind, chosen)


def _render(
    name: str, facts: Facts, settings: Settings, kind: Kind, chosen: RenderOptions
) -> ExitCode:
    kind.require(settings)
    catalogue = loader.load_catalogue()
    there = kind.settings(settings)
    plan = make_plan(facts, there, catalogue)
    found = kind.findings(name, plan, settings, facts, catalogue)
    stopped = [row for row in found if row["severity"] == "blocker"]
    if stopped:
        for row in stopped:
            say(format_wrapped(row))
        say("nothing was written")
        return ExitCode.BLOCKED
    rendered = kind.render(name, plan, found, settings, facts, catalogue)
    done = folder_writer.write_folder(chosen.output, rendered, force=chosen.force)
    _report(chosen.output, plan, found, done, kind)
    return ExitCode.OK


def _report(
    folder: Path,
    plan: MachinePlan,
    found: Sequence[Finding],
    done: folder_writer.WriteResult,
    kind: Kind,
) -> None:
    """Report what was written and kept, and the next step."""
    engine, model = plan["engine"], plan["model"]
    nodes = plan["parallel"]["hosts"]
    for row in found:
        if row["severity"] == "warning":
            say(format_wrapped(row))
    infos = [row for row in found if row["severity"] == "info"]
    say(
        f"{clean_text.clean_line(folder)}: {len(done.written)} files written, "
        f"{len(done.unchanged)} "
        f"unchanged" + (f", {len(done.removed)} removed" if done.removed else "")
    )
    for path in done.kept:
        say(f"  kept, because it was changed by hand: {path} (--force overwrites it)")
    say(
        f"{model['name']} with {engine['name']} {engine['version']} on {nodes} "
        f"node{'s' if nodes > 1 else ''}; {format_bytes(plan['weights']['bytes'])} of weights"
    )
    say(kind.describe(folder, len(infos)))
