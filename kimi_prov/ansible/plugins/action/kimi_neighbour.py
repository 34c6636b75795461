"""Action `kimi_neighbour`: let a host give its weights to another host that downloads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import RemoteError, call

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCUMENTATION = """
module: kimi_neighbour
short_description: Opens a host for another host that fetches the same weights, and closes it
description:
  - Without a neighbour the download uses the source, so an error here never fails a host; it
    becomes a warning.
  - All files are in C(/run) while weights are fetched, and do not count as a change.
  - Returns C(done), and the values that the next task on the other host needs.
options:
  state:
    type: str
    choices: [prepared, opened, taken, closed]
    required: true
    description:
      - C(prepared) on the host that takes returns whether it must fetch, and its key's hash.
      - C(opened) on the host that gives lets one more neighbour in, and returns C(target).
      - C(taken) on the host that takes points its download at the neighbour.
      - C(closed) on the host that gives, and without C(taker) on the one that took, ends it.
  host:
    type: str
    required: true
    description: The host of the task.
  plan:
    type: dict
    description: The plan of the host that gives.
  taker:
    type: str
    description: The host that takes.
  key_sha256:
    type: str
    description: The hash of its key.
  connections:
    type: int
    description: The number of connections that the taker may open.
  rate:
    type: int
    description: Bytes per second for all connections together.
  limit_s:
    type: int
    description: Seconds until the host closes by itself.
  giver:
    type: dict
    description: Name and address of the host that gives.
  target:
    type: dict
    description: The giver's port and certificate.
  slowest:
    type: float
    description: Bytes per second below which the download leaves the giver.
"""

_TARGET = ("port", "certificate_sha256")


class ActionModule(HostAction):
    """Each state is a call of its own on the machine."""

    _supports_check_mode = False

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Bring the host to the state."""
        steps = {
            "prepared": self._prepare,
            "opened": self._open,
            "taken": self._take_from,
            "closed": self._close,
        }
        try:
            return {"done": True, **steps[args["state"]](args)}
        except RemoteError as error:
            warning = f"{args['host']}: {error.line}; the source is asked for the weights"
            result: dict[str, Any] = {"done": False}
            return result if args["state"] == "closed" else {**result, "warnings": [warning]}

    def _prepare(self, args: Mapping[str, Any]) -> dict[str, Any]:
        del args
        answer = call(self, "share", "key", stdin={})
        return {"needed": answer["needed"], "key_sha256": answer["key_sha256"]}

    def _open(self, args: Mapping[str, Any]) -> dict[str, Any]:
        plan, taker = args["plan"], args["taker"]
        addresses = {row["host"]: row["address"] for row in plan["neighbours"]["gives_to"]}
        if taker not in addresses:
            raise RemoteError(f"its plan gives no weights to {taker}")
        request = {
            "port": plan["neighbours"]["port"],
            "addresses": list(addresses.values()),
            "firewall": plan["firewall"],
            "taker": taker,
            "taker_address": addresses[taker],
            **{key: args[key] for key in ("key_sha256", "connections", "rate", "limit_s")},
        }
        answer = call(self, "share", "open", stdin=request)
        return {"target": {name: answer[name] for name in _TARGET}}

    def _take_from(self, args: Mapping[str, Any]) -> dict[str, Any]:
        giver = args["giver"]
        request = {
            "name": giver["host"],
            "address": giver["address"],
            "slowest": args["slowest"],
            **args["target"],
        }
        call(self, "share", "take", stdin=request)
        return {}

    def _close(self, args: Mapping[str, Any]) -> dict[str, Any]:
        verb = "close" if args["taker"] else "drop"
        call(self, "share", verb, stdin={"taker": args["taker"]})
        return {}
