"""The input of rules, and their registration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.planner.findings import Observation, make_finding
from kimi_prov.planner.registry import DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.models import Model
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.facts.gpus import GpuFacts, NvidiaFacts
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import BoundMemory, Budget, EngineChoice, Placement
    from kimi_prov.planner.hosts.groups import Group
    from kimi_prov.planner.registry.definition import Definition
    from kimi_prov.planner.settings.parsing import Settings

    Check = Callable[["PlanContext"], Iterable["RuleResult"]]


@dataclass(frozen=True)
class PlanContext:
    """One machine, its settings, and the decisions.

    `proposed` are the flags that the planner chose, `flags` those with the inventory's over them;
    `plan` is the plan without findings. `group`: the hosts that serve the model together with it.
    """

    host: Host
    settings: Settings
    catalogue: Catalogue
    model: Model
    choice: EngineChoice
    budget: Budget
    place: Placement
    bound: BoundMemory
    proposed: Mapping[str, Any]
    flags: Mapping[str, Any]
    plan: MachinePlan
    group: Group | None = None

    @property
    def facts(self) -> Facts:
        """The machine's facts as they were read."""
        return self.host.facts

    @property
    def nvidia(self) -> NvidiaFacts:
        """Facts of the NVIDIA driver; empty if unknown."""
        return self.host.nvidia

    @property
    def gpus(self) -> Sequence[GpuFacts]:
        """The GPUs' facts."""
        return list(self.host.facts["gpus"])

    @property
    def gpu_count(self) -> int:
        """The number of GPUs of all hosts of the group."""
        return len(self.host.gpu_bytes) * self.settings.hosts_per_model

    @property
    def heavy(self) -> bool:
        """Whether the model is so large that settings of the machine matter."""
        return not self.model.is_synthetic


@dataclass(frozen=True)
class Rule:
    """A rule: the finding that it makes, and the function that checks."""

    definition: Definition
    check: Check


class RuleResult(Observation):
    """The result of a rule."""


RULES: dict[str, Rule] = {}


def register_rule(
    identity: str,
) -> Callable[[Check], Check]:
    """Register a function as the rule of a finding. It yields a RuleResult for each fault.

    Raises KeyError for an id that the registry does not have.
    """

    def register(check: Check) -> Check:
        assert identity not in RULES, identity  # noqa: S101  (two rules of one name)
        RULES[identity] = Rule(DEFINITIONS[identity], check)
        return check

    return register


def make_finding_from_result(rule: Rule, result: RuleResult) -> Finding:
    """Make a finding from a rule's result."""
    return make_finding(rule.definition.id, **result)
