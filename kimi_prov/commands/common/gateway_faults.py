"""Faults of gateways that show only when the gateways are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def mark_split_gateways(documents: Mapping[str, Any]) -> dict[str, Any]:
    """Return status documents in which gateways with the same address are not `ok`.

    Each of them believes that the other is gone. Pure.
    """
    told = dict(documents)
    for host, why in find_split_gateways(documents).items():
        found = told[host]
        detail = f"{found['detail']}; {why}; journalctl -u kimi-gateway-address on both"
        told[host] = {**found, "ok": False, "detail": detail}
    return told


def find_split_gateways(documents: Mapping[str, Any]) -> dict[str, str]:
    """Return a message for each gateway whose address another gateway has too. Pure."""
    holders: dict[str, list[str]] = {}
    for host, found in documents.items():
        gateway = found.get("gateway") or {}
        if gateway.get("has_address"):
            holders.setdefault(str(gateway["address"]), []).append(host)
    return {
        host: f"{' and '.join(hosts)} both have {address}: they do not hear each other"
        for address, hosts in holders.items()
        if len(hosts) > 1
        for host in hosts
    }
