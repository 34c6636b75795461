"""Action `kimi_engine_check`: check the plan's command lines by the engine's own parser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import RemoteError, build_failure, call
from kimi_prov.planner.findings import make_finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.engine import EnginePlan, InstancePlan

DOCUMENTATION = """
module: kimi_engine_check
short_description: Checks the command line of each instance by the engine's parser
description: Runs before any unit is written, so that a refused plan stops nothing that runs.
options:
  plan:
    type: dict
    required: true
    description: The plan, whose engine is installed.
"""

_FIX = "change kimi_engine_args (or kimi_engine_version) in the inventory, then apply again"


class ActionModule(HostAction):
    """Changes nothing."""

    ERROR_IN_CHECK_MODE = "skip"

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Parse every instance's command line by the engine in `plan.engine.env_dir`."""
        plan = args["plan"]
        request = {
            "env_dir": plan["engine"]["env_dir"],
            "gpus": any(instance["gpus"] for instance in plan["instances"]),
            "instances": [{"argv": i["argv"], "env": i["env"]} for i in _list_instances(plan)],
        }
        try:
            call(self, *self.add_check("engine-check"), stdin=request)
        except RemoteError as error:
            if self.check_mode:
                raise
            return _build_refusal(plan["engine"], error)
        return {}


def _list_instances(plan: MachinePlan) -> list[InstancePlan]:
    """Return the planned instances, and those that a stand-in replaces if the versions match."""
    replaced = plan.get("stand_in")
    if not replaced:
        return list(plan["instances"])
    own, other = plan["engine"], replaced["engine"]
    if (own["name"], own["version"]) != (other["name"], other["version"]):
        return list(plan["instances"])
    python = plan["instances"][0]["argv"][0]
    parsed: list[InstancePlan] = [
        {**row, "argv": [python, *row["argv"][1:]]} for row in replaced["instances"]
    ]
    return [*plan["instances"], *parsed]


def _build_refusal(engine: EnginePlan, error: RemoteError) -> dict[str, Any]:
    finding = make_finding(
        "engine.command_line",
        names={
            "name": engine["name"],
            "version": engine["version"],
            "variant": engine["variant"],
        },
        observed=error.message,
        required="flags of that version",
        fix=error.fix or _FIX,
    )
    message = f"{finding['title']}: {error.message}"
    return build_failure(message, finding["fix"], "blockers", [finding])
