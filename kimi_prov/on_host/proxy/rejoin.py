"""On a gateway: store a machine's new certificate, and wait until it gets requests again."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import gateways
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import haproxy
from kimi_prov.on_host.proxy import converge, pins
from kimi_prov.on_host.system import plans
from kimi_prov.on_host.system.envelope import answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import ReturnAnswer
    from kimi_prov.contract.documents.plan.gateway import GatewayPlan, ServingHost

_POLL_INTERVAL_S = 0.2


def wait_for_machine(paths: Paths, request: Mapping[str, Any]) -> ReturnAnswer:
    """Return {"asked", "changed"}; `asked` is false where the gateway does not know the host yet.

    `request`: `host`, its `certificate` (PEM, or null for the known one) and `timeout_s`; `address`
    and `port` where they are planned: new ones take effect at once, and the gateway's own batch,
    which comes after all machines, writes them to its files. Raises HostError where the gateway
    does not send requests there in time.
    """
    plan = plans.read_plan(paths.plan)
    host = str(request["host"])
    if not gateways.is_gateway(plan) or (row := _find_row(plan, host)) is None:
        return {"asked": False, "changed": False}
    server = str(row["server"])
    changed = pins.save_certificate(paths, server, request.get("certificate"))
    # A stopped proxy starts after all machines: until then it sees none of them.
    if changed or not paths.socket.exists():
        converge.converge(paths)
    address, port = request.get("address") or row["address"], request.get("port") or row["port"]
    if (address, port) != (row["address"], row["port"]):
        haproxy.move_server(paths.socket, server, str(address), int(port))
    end = time.monotonic() + float(request["timeout_s"])
    while not _is_sent_requests(paths, server):
        if time.monotonic() > end:
            raise HostError(
                f"{plan['gateway']['name']} sends no requests to {host}, which answers by itself: "
                f"it is {_describe_state(paths, server)} there",
                f"look at the line of {host}:  kimi-prov status INVENTORY",
            )
        time.sleep(_POLL_INTERVAL_S)
    return {"asked": True, "changed": changed}


def _find_row(plan: GatewayPlan, host: str) -> ServingHost | None:
    return next((row for row in plan["gateway"]["hosts"] if row["host"] == host), None)


def _is_sent_requests(paths: Paths, server: str) -> bool:
    try:
        return server in haproxy.list_passed(paths.socket)
    except OSError:
        return False


def _describe_state(paths: Paths, server: str) -> str:
    """Return in a few words how HAProxy sees a server to which it sends no requests."""
    try:
        seen = {str(row["name"]): str(row["status"]) for row in haproxy.list_servers(paths.socket)}
    except OSError:
        seen = {}
    status = seen.get(server, "unknown")
    return "up without a check that passed" if status == "UP" else status.lower()


def main(argv: list[str]) -> int:
    """`gateway-return`: read the request from standard input."""
    del argv
    return answer({"ok": True, **wait_for_machine(Paths(), json.load(sys.stdin))})
