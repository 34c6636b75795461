"""Action `kimi_batch`: begin and end a machine's batch in a run with several batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleConnectionFailure

from kimi_prov.ansible import batches, gateway_hosts
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import build_failure, build_unreachable, execute
from kimi_prov.ansible.send import call_sent
from kimi_prov.errors import UserError
from kimi_prov.runner import skipped_hosts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import ReturnAnswer

DOCUMENTATION = """
module: kimi_batch
short_description: Begins and ends a machine's batch
description: Changes nothing on the machine.
options:
  state:
    type: str
    choices: [begin, end, returned]
    required: true
    description:
      - C(begin) refuses if a machine of an earlier batch failed, or if this one is not reached.
      - C(end) returns in C(waiting) the machines whose batch will not begin.
      - C(returned) runs on a gateway, and waits until it sends to the machine.
  apart:
    type: bool
    default: false
    description: Hosts that serve one model together may be in different batches.
  waiting:
    type: list
    elements: str
    description: The machines whose batch will not begin, if they are known.
  certificate:
    type: str
    default: ''
    description: The machine's new certificate, for the gateway.
  moves:
    type: bool
    default: false
    description: Hand over the address and port that the inventory now has for the machine.
"""

# A gateway asks a machine every 2 seconds whether it takes requests.
RETURN_S = 60


class ActionModule(HostAction):
    """The inventory decides which host is in which batch."""

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Run the step."""
        if args["state"] == "returned":
            return self._wait_returned(args)
        if args["waiting"] is not None:
            return self._end(args["waiting"])
        rows = batches.list_batches(
            self.variables["groups"], self.variables["hostvars"], apart=args["apart"]
        )
        going = set(self.variables["ansible_play_hosts"])
        if args["state"] == "begin":
            return self._begin(rows, going)
        return self._end([name for name in batches.list_after(rows, self.host) if name in going])

    def _begin(self, rows: list[list[str]], going: set[str]) -> dict[str, Any]:
        failed = [name for name in batches.list_before(rows, self.host) if name not in going]
        if failed:
            message = f"{self.host}: {skipped_hosts.describe_reason(failed)}"
            fix = "correct what failed there, and run the same command again"
            return build_failure(message, fix, "blockers")
        try:
            execute(self, "true")
        except AnsibleConnectionFailure as error:
            return build_unreachable(error)
        return {}

    def _end(self, waiting: list[str]) -> dict[str, Any]:
        reason = skipped_hosts.describe_reason([self.host])
        return {
            "waiting": waiting,
            "kimi_skipped": dict.fromkeys(waiting, reason),
            "warnings": [skipped_hosts.describe_skipped([self.host], waiting)] if waiting else [],
        }

    def _wait_returned(self, args: Mapping[str, Any]) -> dict[str, Any]:
        if self.check_mode:
            return {"skipped": True, "msg": "check mode: nothing has left"}
        request: Mapping[str, Any] = {
            "host": self.host,
            "certificate": args["certificate"] or None,
            **(self._find_place() if args["moves"] else {}),
            "timeout_s": RETURN_S,
        }
        try:
            answer: ReturnAnswer = call_sent(self, "gateway-return", stdin=request)
        except AnsibleConnectionFailure:
            gateway = self._task.delegate_to
            warning = f"{gateway} was not reached: it finds by itself that {self.host} serves"
            return {"warnings": [warning]}
        return {"changed": answer["changed"]}

    def _find_place(self) -> dict[str, Any]:
        """Return the address and port at which gateways reach the machine; empty if unknown."""
        try:
            rows = gateway_hosts.list_served_hosts(self.variables)
        except UserError:
            # Another host's values come from that host's own plan.
            return {}
        own = (row for row in rows if row.host == self.host)
        return next(({"address": row.address, "port": row.port} for row in own), {})
