"""Action `kimi_batch`: a machine's turn in a run that changes some at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from kimi_prov.ansible import batches, gateway_hosts
from kimi_prov.ansible.remote import RemoteError, build_failure, build_unreachable, execute
from kimi_prov.ansible.send import call_sent
from kimi_prov.errors import UserError
from kimi_prov.runner import skipped_hosts

if TYPE_CHECKING:
    from collections.abc import Mapping

# A gateway asks a machine every 2 seconds whether it takes requests.
RETURN_S = 60


class ActionModule(ActionBase):  # type: ignore[misc]
    """`state`: begin, end or returned; `apart` as `batches.of` has it.

    `begin` refuses where a machine before it failed, or where this one is not reached. `end` names
    in `waiting` those whose turn does not come any more, all of `waiting` where that is given.
    `returned` runs on a gateway: it hands over the machine's `certificate`, where that is given,
    and where it `moves` the place that the inventory has for it now, and waits until the gateway
    sends to the machine.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the step; on the machine nothing is changed."""
        result: dict[str, Any] = super().run(tmp, task_vars) | {"changed": False}
        variables = task_vars or {}
        host = str(variables["inventory_hostname"])
        if self._task.args["state"] == "returned":
            return result | self._returned(host, variables)
        if "waiting" in self._task.args:
            return result | _ended(host, list(self._task.args["waiting"]))
        rows = batches.list_batches(
            variables["groups"],
            variables["hostvars"],
            apart=bool(self._task.args.get("apart")),
        )
        going = set(variables["ansible_play_hosts"])
        if self._task.args["state"] == "begin":
            return result | self._begun(host, rows, going)
        return result | _ended(
            host, [name for name in batches.list_after(rows, host) if name in going]
        )

    def _begun(self, host: str, rows: list[list[str]], going: set[str]) -> dict[str, Any]:
        failed = [name for name in batches.list_before(rows, host) if name not in going]
        if failed:
            fix = "correct what failed there, and run the same command again"
            return build_failure(
                f"{host}: {skipped_hosts.describe_reason(failed)}", fix, "blockers"
            )
        try:
            execute(self, "true")
        except AnsibleConnectionFailure as error:
            return build_unreachable(error)
        return {}

    def _returned(self, host: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        if self._task.check_mode:
            return {"skipped": True, "msg": "check mode: nothing has left"}
        given: Mapping[str, Any] = {
            "host": host,
            "certificate": self._task.args.get("certificate") or None,
            **_place(host, variables if self._task.args.get("moves") else {}),
            "timeout_s": RETURN_S,
        }
        try:
            told = call_sent(self, "gateway-return", stdin=given)
        except AnsibleConnectionFailure:
            gateway = self._task.delegate_to
            return {
                "warnings": [f"{gateway} was not reached: it finds by itself that {host} serves"]
            }
        except RemoteError as error:
            return build_failure(error)
        return {"changed": told["changed"]}


def _place(host: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Give the address and the port at which gateways are to find a host; empty where unknown."""
    try:
        rows = gateway_hosts.behind(variables) if variables else []
    except UserError:
        # Of another host, which its own plan told.
        return {}
    return next(({"address": r.address, "port": r.port} for r in rows if r.host == host), {})


def _ended(host: str, waiting: list[str]) -> dict[str, Any]:
    said = [skipped_hosts.describe_skipped([host], waiting)] if waiting else []
    left = dict.fromkeys(waiting, skipped_hosts.describe_reason([host]))
    return {"waiting": waiting, "kimi_skipped": left, "warnings": said}
