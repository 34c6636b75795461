"""Rules on the whole plan: each has a definition and a function. check(context) -> findings.

Decides: the findings of rules.
Held by: tests/unit/planner/rules/test_rules.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.planner.rules import (
    cache,
    cpu,
    drafts,
    engines,
    experts,
    gpu,
    groups,
    machine,
    network,
    recipes,
    site,
    software,
    weights,
)
from kimi_prov.planner.rules.context import RULES, make_finding_from_result

if TYPE_CHECKING:
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.planner.rules.context import PlanContext

# Imported because they register rules.
_MODULES = (
    cache,
    cpu,
    drafts,
    engines,
    experts,
    gpu,
    groups,
    machine,
    network,
    recipes,
    site,
    software,
    weights,
)


def check_rules(context: PlanContext) -> list[Finding]:
    """Run every rule; unknown values make no finding and are never guessed."""
    return [
        make_finding_from_result(rule, result)
        for rule in RULES.values()
        for result in rule.check(context)
    ]
