"""Rules across the layers: each with an id, a source and a function. judge(case) -> findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.planner.rules import cpu, engines, gpu, machine, software
from kimi_prov.planner.rules.context import RULES, finding

if TYPE_CHECKING:
    from kimi_prov.planner.findings import Finding
    from kimi_prov.planner.rules.context import Case

# Imported for the rules that they enter.
_MODULES = (cpu, engines, gpu, machine, software)


def judge(case: Case) -> list[Finding]:
    """Ask every rule; what is unknown is passed over in silence, never guessed."""
    return [finding(rule, hit) for rule in RULES.values() for hit in rule.look(case)]


def table() -> str:
    """Give the documentation of every rule as Markdown: `docs/rules.md`."""
    lines = [
        "# Rules",
        "",
        "What `check` and `plan` look at beyond room, ports and packages: each finding's id, what",
        "it says, and where the rule is from. Made by `python -m kimi_prov.planner.rules`.",
        "",
        "| id | what it says | source |",
        "| --- | --- | --- |",
    ]
    lines += [f"| `{r.id}` | {r.title} | {r.source} |" for _, r in sorted(RULES.items())]
    return "\n".join(lines) + "\n"
