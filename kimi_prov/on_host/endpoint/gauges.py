"""A gateway's metrics that HAProxy's own exporter does not have.

The gateway's counter writes them, because it asks every machine anyway and may ask the proxy.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.endpoint import certificate, haproxy
from kimi_prov.on_host.system.exposition import Sample
from kimi_prov.on_host.system.files import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan.gateway import GatewayPlan
    from kimi_prov.contract.paths import Paths

HELPS: dict[str, str] = {
    "kimi_gateway_machine_up": "1 while the gateway sends requests to the machine.",
    "kimi_gateway_requests": "Requests that the machine is answering for this gateway.",
    "kimi_gateway_requests_waiting": "Requests that wait at the gateway for a machine.",
    "kimi_gateway_requests_waiting_most": "Requests that may wait; further ones get 429.",
    "kimi_gateway_machines_asleep": "Machines that are asleep and that a request would wake.",
    "kimi_gateway_has_address": "1 while this gateway has the shared address.",
    "kimi_gateway_machine_certificate_expires_timestamp_seconds": (
        "End of the certificate that is pinned for the machine."
    ),
    "kimi_gateway_clock_apart_seconds": "The machine's clock minus that of the gateway.",
}


def has_address(address: str) -> bool:
    """Return whether this host has an address now: no other host may use it."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as own:
        try:
            own.bind((address, 0))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            return False
    return True


@lru_cache(maxsize=256)
def _read_end(pem: str) -> int | None:
    found = certificate.read(pem) if pem else None
    return found.not_after if found else None


def collect_samples(paths: Paths, plan: GatewayPlan, apart: Mapping[str, float]) -> list[Sample]:
    """Return the present values; no machines where the proxy does not answer.

    `apart`: seconds by machine.
    """
    own = plan["gateway"]
    try:
        seen = {str(row["name"]): row for row in haproxy.list_servers(paths.socket)}
        waiting, asleep = haproxy.count_waiting(paths.socket), haproxy.count_asleep(paths.socket)
    except (OSError, HostError):
        seen, waiting, asleep = {}, 0, 0
    found = [
        Sample("kimi_gateway_requests_waiting", waiting),
        Sample("kimi_gateway_requests_waiting_most", own["waiting"]),
        Sample("kimi_gateway_machines_asleep", asleep),
    ]
    if own["address"]:
        label = {"address": own["address"]}
        found.append(Sample("kimi_gateway_has_address", has_address(own["address"]), label))
    for row in own["hosts"]:
        server: Mapping[str, Any] = seen.get(row["server"]) or {}
        label = {"machine": row["host"]}
        ends = _read_end(read_text(paths.hosts / f"{row['server']}.crt"))
        found += [
            Sample("kimi_gateway_machine_up", server.get("status") == "UP", label),
            Sample("kimi_gateway_requests", int(server.get("requests") or 0), label),
            Sample(
                "kimi_gateway_machine_certificate_expires_timestamp_seconds",
                ends,
                label,
            ),
            Sample("kimi_gateway_clock_apart_seconds", apart.get(row["server"]), label),
        ]
    return found
