"""Rules across the layers: each with a definition and a function. judge(context) -> findings."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from kimi_prov.planner.registry import DEFINITIONS, SUBJECTS
from kimi_prov.planner.registry.definition import REMEDIES, SEVERITIES
from kimi_prov.planner.rules import cpu, engines, gpu, machine, software
from kimi_prov.planner.rules.context import RULES, finding

if TYPE_CHECKING:
    from kimi_prov.planner.findings import Finding
    from kimi_prov.planner.registry.definition import Definition
    from kimi_prov.planner.rules.context import PlanContext

# The page that `table` is kept in, from the root of the project.
PAGE = "docs/rules.md"
# Imported for the rules that they enter.
_MODULES = (cpu, engines, gpu, machine, software)


def judge(context: PlanContext) -> list[Finding]:
    """Ask every rule; what is unknown is passed over in silence, never guessed."""
    return [finding(rule, result) for rule in RULES.values() for result in rule.check(context)]


def table() -> str:
    """Give the documentation of every finding as Markdown: the page PAGE."""
    lines = [
        "# Findings",
        "",
        "What `check`, `plan` and `apply` say of a machine, by subject. Made by",
        "`python -m kimi_prov.planner.rules`.",
        "",
        "An id stays what it is: scripts may compare it. Words in italics are filled in; several",
        "titles of one finding are parted by a slash. A finding with a fix that costs nothing but",
        "work, or that has a price, says so in `cost_usd` and `cost_basis`.",
        "",
        "| severity | what it does |",
        "| --- | --- |",
        *(f"| {name} | {meaning} |" for name, meaning in SEVERITIES.items()),
        "",
        "| remedy | what it takes |",
        "| --- | --- |",
        *(f"| {name} | {meaning} |" for name, meaning in REMEDIES.items()),
        "",
        "Two marks stand beside a severity:",
        "",
        "- *blocks apply*: `check` and `plan` go on, and `apply` refuses the host all the same.",
        "- *apply fixes it*: `apply` does not refuse the host for it. For what goes with the",
        "  driver this holds where the plan installs it or restarts the machine for it.",
    ]
    for subject, rows in groupby(sorted(DEFINITIONS.values(), key=_by_subject), key=_subject):
        lines += ["", f"## {SUBJECTS[subject]}", ""]
        lines += [
            "| id | what it says | severity | remedy | source |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [_row(definition) for definition in rows]
    return "\n".join(lines) + "\n"


def _subject(definition: Definition) -> str:
    return definition.id.partition(".")[0]


def _by_subject(definition: Definition) -> tuple[str, str]:
    return _subject(definition), definition.id


def _row(definition: Definition) -> str:
    says = " / ".join(definition.shown_titles())
    if definition.own_title:
        says += " / the title of a row of the catalogue"
    severity = ", ".join(definition.severities)
    if definition.blocks_apply:
        severity += "; *blocks apply*"
    if definition.fixed_by_apply:
        severity += "; *apply fixes it*"
    parts = (f"`{definition.id}`", says, severity, definition.remedy, definition.source)
    return f"| {' | '.join(parts)} |"
