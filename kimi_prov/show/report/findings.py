"""Findings of a check document: by severity, grouped over targets, and the cost of the fix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.show.text.formats import clean, format_money

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kimi_prov.contract.documents.check import CheckedTarget as Target
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan


def filter_severity(target: Target | MachinePlan, *severities: str) -> list[Finding]:
    """Return the findings of these severities in the order of the document."""
    return [row for row in target["findings"] if row["severity"] in severities]


def is_by_hand(target: Target | MachinePlan) -> bool:
    """Whether nothing is in the way but the engine, which somebody has to install by hand."""
    blockers = filter_severity(target, "blocker")
    return bool(blockers) and all(row["id"] == "engine.not_provisioned" for row in blockers)


def is_possible(target: Target | MachinePlan) -> bool:
    """Whether the machine serves the model, be it by hand."""
    return not filter_severity(target, "blocker") or is_by_hand(target)


def is_on_paper(target: Target) -> bool:
    """Whether the machine is only described, so that no finding can be fixed on it yet."""
    origin = target["facts"].get("origin")
    return origin is not None and origin["kind"] in ("spec", "recording", "suggested")


def list_warnings(target: Target) -> list[Finding]:
    """Return the warnings that matter: of a described machine only those of the purchase."""
    found = filter_severity(target, "warning")
    return [row for row in found if not (is_on_paper(target) and _is_deployment(row))]


def list_to_settle(targets: Iterable[Target]) -> list[tuple[list[str], Finding]]:
    """Return each warning of deployment once, with the described machines that have it."""
    held: dict[Any, tuple[list[str], Finding]] = {}
    for target in filter(is_on_paper, targets):
        for row in filter(_is_deployment, filter_severity(target, "warning")):
            names, _ = held.setdefault(clean(row["title"]), ([], row))
            names.append(clean(target["name"]))
    return list(held.values())


def _is_deployment(row: Finding) -> bool:
    return row.get("concerns") == "deployment"


def list_blockers(targets: Iterable[Target]) -> list[tuple[str, Finding]]:
    """Return every blocker once, with the names of its targets."""
    held: dict[Any, tuple[list[str], Finding]] = {}
    for target in targets:
        for row in filter_severity(target, "blocker"):
            key = tuple(clean(row[part]) for part in ("id", "title", "observed", "required", "fix"))
            held.setdefault(key, ([], row))[0].append(clean(target["name"]))
    return [(", ".join(names), row) for names, row in held.values()]


def describe_remediation_cost(row: Finding) -> str:
    """Describe the cost of a fix, as far as it is known."""
    cost, basis = row.get("cost_usd"), row.get("cost_basis")
    if cost is None:
        return "not known: nothing in the catalogue has a price for it"
    if cost == 0:
        return "work, nothing to buy"
    return f"about {format_money(cost)}: {clean(basis)}" if basis else format_money(cost)
