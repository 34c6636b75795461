"""A finding in plans and checks."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from kimi_prov.contract.documents.form import Amount, NotRequired, Rule

Severity = Literal["blocker", "warning", "info", "pass"]
FindingId = Annotated[str, Rule(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)+$")]


class Finding(TypedDict):
    """A finding about a machine; see docs/reference/findings.md."""

    id: FindingId
    """It never changes."""
    severity: Severity
    title: str
    observed: Any
    required: Any
    fix: str | None
    source: str
    concerns: NotRequired[Literal["purchase", "deployment"]]
    """Whether the buyer of the machine has to consider it, or only who sets it up."""
    cost_usd: NotRequired[Amount | None]
    """What fixing it costs, where that is known."""
    cost_basis: NotRequired[str]
    """How that was computed."""


class ToldFinding(TypedDict):
    """A finding as a machine reports it: the control side adds the rest."""

    id: str
    observed: Any
    required: Any
    fix: str | None
