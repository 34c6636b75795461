"""What a rule looks at, and how rules are written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.planner.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kimi_prov.catalog.loader import Catalogue, Model
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.engine.selection import Choice
    from kimi_prov.planner.memory.cpu import Budget
    from kimi_prov.planner.memory.numa import Placement
    from kimi_prov.planner.settings.parsing import Wishes
    from kimi_prov.planner.storage.weights import Bound


@dataclass(frozen=True)
class Case:
    """One machine, what is asked of it, and what was decided.

    `proposed` are the flags that the planner chose, `flags` those with the inventory's over them;
    `plan` is the plan without findings.
    """

    host: Host
    wishes: Wishes
    catalogue: Catalogue
    model: Model
    choice: Choice
    budget: Budget
    place: Placement
    bound: Bound
    proposed: Mapping[str, Any]
    flags: Mapping[str, Any]
    plan: Mapping[str, Any]

    @property
    def facts(self) -> Mapping[str, Any]:
        """The machine's facts as they came."""
        return self.host.facts

    @property
    def nvidia(self) -> Mapping[str, Any]:
        """What is known of the NVIDIA driver; empty where nothing is."""
        return self.host.facts.get("nvidia") or {}

    @property
    def cards(self) -> list[Mapping[str, Any]]:
        """The GPUs' facts."""
        return list(self.host.facts["gpus"])

    @property
    def heavy(self) -> bool:
        """Whether the model is of a size that settings of the machine matter to."""
        return not self.model.random_weights


@dataclass(frozen=True)
class Rule:
    """A rule: its id, what it says, where it is from, and the function that looks."""

    id: str
    title: str
    source: str
    look: Callable[[Case], Iterable[Hit]]


@dataclass(frozen=True)
class Hit:
    """What a rule found. A title of its own replaces the rule's."""

    severity: Severity
    observed: object
    required: object
    fix: str | None = None
    title: str | None = None
    source: str | None = None


RULES: dict[str, Rule] = {}


def rule(
    identity: str, title: str, source: str
) -> Callable[[Callable[[Case], Iterable[Hit]]], Callable[[Case], Iterable[Hit]]]:
    """Enter a function as a rule. It gives a Hit for each thing that is wrong, or none."""

    def enter(look: Callable[[Case], Iterable[Hit]]) -> Callable[[Case], Iterable[Hit]]:
        assert identity not in RULES, identity  # noqa: S101  (two rules of one name)
        RULES[identity] = Rule(identity, title, source, look)
        return look

    return enter


def finding(found: Rule, hit: Hit) -> Finding:
    """Make a finding of what a rule found."""
    return Finding(
        id=found.id,
        severity=hit.severity,
        title=hit.title or found.title,
        observed=hit.observed,
        required=hit.required,
        fix=hit.fix,
        source=hit.source or found.source,
    )
