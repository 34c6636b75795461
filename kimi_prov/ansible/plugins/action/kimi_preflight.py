"""Action `kimi_preflight`: stop before anything changes if the plan has blockers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.ansible.group_hosts import find_refused_peers
from kimi_prov.ansible.host_action import HostAction, build_refusal
from kimi_prov.ansible.remote import build_failure
from kimi_prov.planner.plan import find_refusals
from kimi_prov.show.text.findings import format_findings

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCUMENTATION = """
module: kimi_preflight
short_description: Fails with all blockers of a plan
description: One message has all blockers, so that one run shows everything to fix.
options:
  plan:
    type: dict
    required: true
    description: The plan.
"""


class ActionModule(HostAction):
    """Calls nothing on the machine."""

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Fail with the blockers, or pass with the warnings in `msg`."""
        plan = args["plan"]
        blockers = find_refusals(plan)
        if blockers:
            return build_refusal(self.host, blockers)
        if plan["group"] is not None:
            refused = find_refused_peers(plan["group"], self.host, self.variables["hostvars"])
            if refused:
                message = f"{self.host} waits for its group: {'; '.join(refused)}"
                return build_failure(message, "correct that host first", code="blockers")
        warnings = [row for row in plan["findings"] if row["severity"] == "warning"]
        return {"msg": format_findings(warnings) if warnings else "nothing stands in the way"}
