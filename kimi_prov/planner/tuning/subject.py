"""The machine that is tuned: its plan with other variables, and what forbids to try one.

Decides: which candidates a tune may try on a machine.
Held by: tests/unit/planner/tuning/test_candidates.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kimi_prov.planner.plan import find_refusals, make_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.tune import TunePurpose, Variables
    from kimi_prov.planner.gateways import GatewayAddress
    from kimi_prov.planner.settings.parsing import Settings


@dataclass(frozen=True)
class Subject:
    """A machine that serves, and what its plan is made from. `users`: requests at once of a load.

    `purpose`: what the winner is best for, as kimi_optimise has it.
    """

    facts: Facts
    settings: Settings
    catalogue: Catalogue
    served: MachinePlan
    purpose: TunePurpose
    users: int
    before: Sequence[GatewayAddress] = ()

    def plan(self, variables: Variables) -> MachinePlan:
        """Make the machine's plan with other values of some variables."""
        settings = replace(self.settings, **variables)
        return make_plan(self.facts, settings, self.catalogue, None, self.before)


def find_refusal(plan: MachinePlan) -> tuple[str, str] | None:
    """Return why a machine of this plan is not tuned, and what to do; None where it is."""
    if plan.get("group"):
        return (
            "it serves one model together with other hosts, and a tune restarts one host's engine",
            "compare settings of a group with kimi-prov bench, one apply for each",
        )
    count = len(plan["instances"])
    if count > 1:
        return (
            f"{count} engines share its port, and a tune measures one engine at its own port",
            "compare settings with kimi-prov bench, or set kimi_instances: 1 and apply first",
        )
    return None


def find_obstacle(served: MachinePlan, planned: MachinePlan) -> str | None:
    """Return why a candidate cannot run in place of what serves; None where it can."""
    known = {row["id"] for row in find_refusals(served)}
    for row in find_refusals(planned):
        if row["id"] not in known:
            return f"{row['title']}: {row['observed']}"
    if len(planned["instances"]) != len(served["instances"]):
        return f"{len(planned['instances'])} engines need another proxy: apply does that"
    same_engine = planned["engine"]["env_name"] == served["engine"]["env_name"]
    if not same_engine or not set(_list_weights(planned)) <= set(_list_weights(served)):
        return "it needs another engine or other weights: apply installs them"
    least = served["model"]["context"]
    if planned["model"]["context"] < least:
        return f"its context has {planned['model']['context']} tokens, {least} are served"
    if _list_processes(planned) == _list_processes(served):
        return "its command line is the one that serves"
    return None


def _list_weights(plan: MachinePlan) -> list[str]:
    """List the folders of weights that a plan reads."""
    draft, converted = plan["weights"]["draft"], plan["weights"].get("converted")
    rows = (draft, converted, plan.get("prepared_weights"))
    return [plan["model"]["serve_dir"], *[row["dir"] for row in rows if row and row["dir"]]]


def _list_processes(plan: MachinePlan) -> list[tuple[object, ...]]:
    return [(row["argv"], row["env"], row["numactl"], row["cpus"]) for row in plan["instances"]]
