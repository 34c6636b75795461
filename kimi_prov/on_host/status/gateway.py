"""A gateway's part of `status`: the hosts it sends to, and whether it has the shared address."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths as layout
from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.endpoint import certificate, haproxy, tls
from kimi_prov.on_host.engine import runtime
from kimi_prov.on_host.keys import key_map
from kimi_prov.on_host.system import boot, units
from kimi_prov.on_host.system.files import read_text
from kimi_prov.on_host.system.process import run
from kimi_prov.on_host.web import status as page

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan.gateway import GatewayPlan
    from kimi_prov.contract.documents.status.gateway import GatewayState, HostBehind
    from kimi_prov.contract.paths import Paths

UP = "UP"
# The same limit as in the alert.
MAX_CLOCK_SKEW_S = 5.0
_UNITS = (
    *(unit_names.PROXY, unit_names.USAGE, unit_names.FIREWALL, unit_names.GATEWAY_ADDRESS),
    *(unit_names.NODE_EXPORTER, unit_names.METRICS_TIMER, unit_names.WEB),
)


def describe_hosts(paths: Paths, plan: GatewayPlan) -> list[HostBehind]:
    """Return each host behind the gateway: how HAProxy sees it, and its requests under way."""
    try:
        seen = {str(row["name"]): row for row in haproxy.list_servers(paths.socket)}
    except (OSError, HostError):
        seen = {}
    none: dict[str, Any] = {"status": "unknown", "requests": 0}
    return [
        {
            "host": row["host"],
            "address": row["address"],
            "port": row["port"],
            "state": str(seen.get(row["server"], none)["status"]).lower(),
            "requests": int(seen.get(row["server"], none)["requests"]),
            "requests_at_once": row["requests"],
        }
        for row in plan["gateway"]["hosts"]
    ]


def has_address(address: str) -> bool:
    """Return whether this host has an address now."""
    listed = run("ip", "-o", "address", "show", "to", address)
    return listed.returncode == 0 and bool(listed.stdout.strip())


def list_warnings(paths: Paths, behind: list[HostBehind], servers: list[str]) -> list[str]:
    """Return warnings about what will keep requests from a machine, or is counted wrongly."""
    # The counter's code imports the proxy's: not at the top.
    from kimi_prov.on_host.usage import machines  # noqa: PLC0415

    found = []
    for row, server in zip(behind, servers):
        pinned = certificate.read(read_text(paths.hosts / f"{server}.crt"))
        left = pinned.not_after - time.time() if pinned else None
        if left is not None and left < certificate.AHEAD_S:
            ends = "has ended" if left < 0 else f"ends in {left / certificate.DAY_S:.0f} days"
            found.append(f"the certificate of {row['host']} {ends}: an apply makes a new one")
        apart = None
        if row["state"] == UP.lower():
            apart = machines.measure_clock_skew(paths, (server, row["address"], row["port"]))
        if apart is not None and abs(apart) > MAX_CLOCK_SKEW_S:
            way = "ahead of" if apart > 0 else "behind"
            found.append(
                f"the clock of {row['host']} is {abs(apart):.0f} s {way} that of this gateway: "
                "compare timedatectl on both"
            )
    return found


def build_document(paths: Paths, plan: GatewayPlan) -> GatewayState:
    """Return the status document of a gateway; `ok` where all of its hosts take requests."""
    behind = describe_hosts(paths, plan)
    states = units.read_states(*_UNITS)
    shared = plan["gateway"]["address"]
    needed = [unit_names.PROXY, unit_names.USAGE, unit_names.FIREWALL]
    needed += [unit_names.GATEWAY_ADDRESS] if shared else []
    needed += [unit_names.NODE_EXPORTER, unit_names.METRICS_TIMER] if plan.get("metrics") else []
    web = plan.get("web")
    needed += [unit_names.WEB] if web else []
    down = [name for name in needed if states.get(name, {}).get("state") != "active"]
    away = [row["host"] for row in behind if row["state"] != UP.lower()]
    cert = certificate.describe_current(paths, plan)
    detail = f"sends to {len(behind) - len(away)} of {len(behind)} hosts"
    if down:
        detail = "not active: " + ", ".join(down)
    elif away:
        detail += f"; not to {', '.join(away)}"
    port = plan["proxy"]["port"]
    return {
        "ok": not down and not away,
        "provisioned": True,
        "detail": detail,
        "gateway": {
            "address": shared,
            "has_address": has_address(shared) if shared else None,
            "peers": [row["host"] for row in plan["gateway"]["peers"]],
            "hosts": behind,
            "warnings": list_warnings(
                paths, behind, [r["server"] for r in plan["gateway"]["hosts"]]
            ),
            "units": {name: states.get(name, {}).get("state") for name in needed},
            "port": port,
            "listening": runtime.find_listeners([port])[str(port)],
            "allowed_networks": plan["proxy"]["allowed_networks"],
            "guarded": run("nft", "list", "table", *layout.FIREWALL_TABLE).returncode == 0,
            "certificate_sha256": tls.compute_fingerprint(read_text(paths.tls_crt)),
            "certificate": cert,
            "keys": sorted(key_map.read(paths)),
            "key_not_shown_yet": paths.operator_new.exists(),
            "uptime_seconds": boot.read_uptime_s(),
        },
        "web": page.build_document(paths, web, states.get(unit_names.WEB, {})) if web else None,
    }
