"""Action `kimi_drift`: find what on the machine differs from what was applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from kimi_prov.acceptance import drift, suite
from kimi_prov.ansible import gateway_hosts
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import RemoteError
from kimi_prov.ansible.send import call_sent
from kimi_prov.contract.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import DriftAnswer
    from kimi_prov.contract.documents.plan import Plan

DOCUMENTATION = """
module: kimi_drift
short_description: Compares the machine with the applied plan, and that plan with today's
description:
  - Returns the host's document; drift does not fail the task.
  - Sends its own copy of the code, because the installed one may have been changed.
options:
  plan:
    type: dict
    description: The plan that would be applied today, if one could be made.
  unplanned:
    type: str
    description: The reason why there is no such plan.
  weights:
    type: bool
    default: false
    description: Read all weights again.
  inventory:
    type: raw
    description: The drift of the inventory, which the command finds.
"""


class ActionModule(HostAction):
    """Changes nothing."""

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Observe the machine and compare."""
        try:
            seen: DriftAnswer = call_sent(
                self, "drift", *(["--weights"] if args["weights"] else [])
            )
        except RemoteError as error:
            return {"kimi_document": drift.make_unreached_entry(error.line)}
        plan = cast("Plan", seen.get("plan") or {})
        groups = self.variables.get("groups") or {}
        hosts = [*(groups.get("kimi") or ()), *(groups.get(gateway_hosts.GROUP) or ())]
        limit = drift.make_limit_options(self.host, hosts, plan.get("group"))
        try:
            document = drift.make_document(
                seen, args["plan"] or None, args["unplanned"] or None, args["inventory"], limit
            )
        except HostError as error:
            return {"kimi_document": drift.make_unreached_entry(error.line)}
        document["stand_ins"] = suite.list_stand_ins(plan, self.variables)
        return {"kimi_document": document}
