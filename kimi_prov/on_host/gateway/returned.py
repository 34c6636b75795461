"""On a gateway: take a machine's certificate over, and wait until requests go there again."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

from kimi_prov.contract import gateways
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.gateway import haproxy, pins, proxy
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAUSE_S = 0.2
_UP = "UP"


def awaited(paths: Paths, request: Mapping[str, Any]) -> Dict[str, Any]:
    """Return {"asked", "changed"}; `asked` is false where the gateway does not know the host yet.

    `request`: `host`, its `certificate` (PEM, or null for the one that is known) and `timeout_s`.
    Raises HostError where the gateway does not send there in time.
    """
    plan = read_json(paths.plan)
    host = str(request["host"])
    server = _server(plan, host)
    if server is None:
        return {"asked": False, "changed": False}
    changed = pins.keep(paths, server, request.get("certificate"))
    if changed:
        proxy.converge(paths)
    status = "unknown"
    for status in _states(paths, server, float(request["timeout_s"])):
        if status == _UP:
            return {"asked": True, "changed": changed}
    raise HostError(
        f"{plan['gateway']['name']} sends nothing to {host}, which answers by itself: it is "
        f"{status.lower()} there",
        f"look at the line of {host}:  kimi-prov status INVENTORY",
    )


def _server(plan: Mapping[str, Any], host: str) -> Optional[str]:
    rows = plan["gateway"]["hosts"] if gateways.is_gateway(plan) else ()
    return next((str(row["server"]) for row in rows if row["host"] == host), None)


def _states(paths: Paths, server: str, timeout_s: float) -> Iterator[str]:
    """Give how HAProxy sees a server, now and again until the time is over."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            seen = {str(row["name"]): str(row["status"]) for row in haproxy.servers(paths.socket)}
            if seen.get(server) == _UP and server in haproxy.unchecked(paths.socket):
                seen[server] = "unchecked"
        except (OSError, HostError):
            seen = {}
        yield seen.get(server, "unknown")
        if time.monotonic() > end:
            return
        time.sleep(_PAUSE_S)


def main(argv: List[str]) -> int:
    """`gateway-return`: the request by standard input."""
    del argv
    return answer({"ok": True, **awaited(Paths(), json.load(sys.stdin))})
