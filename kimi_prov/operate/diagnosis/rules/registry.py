"""How a rule is registered, and how it says what it recognised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kimi_prov.planner.findings import Observation

if TYPE_CHECKING:
    from collections.abc import Callable

    from kimi_prov.operate.diagnosis.evidence import Evidence, Hit

    # How severe a fault is now.
    Now = Literal["blocker", "warning", "info"]
    Check = Callable[[Evidence], "Observation | None"]

RULES: dict[str, Check] = {}
EVERYWHERE = "no such line since the engine last answered"


def register_rule(identity: str) -> Callable[[Check], Check]:
    """Register a function as the rule of a finding of the registry."""

    def register(check: Check) -> Check:
        assert identity not in RULES, identity  # noqa: S101  (two rules of one name)
        RULES[identity] = check
        return check

    return register


def choose_severity(evidence: Evidence, hit: Hit) -> Now:
    """Return how severe a line is now: over, survived, or what keeps the model from serving."""
    vain = evidence.rest.get("failed")
    if hit.over or (evidence.rest and not vain):
        # A machine that was stopped on purpose has no fault that keeps it from serving.
        return "info"
    return "warning" if evidence.serving and not vain else "blocker"


def make_observation(evidence: Evidence, hit: Hit | None, fix: str) -> Observation | None:
    """Say what a line tells, where there is one, and how grave that is now."""
    if hit is None:
        return None
    severity = choose_severity(evidence, hit)
    return Observation(observed=hit.observed, required=EVERYWHERE, fix=fix, severity=severity)
