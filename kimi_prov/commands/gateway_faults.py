"""Faults of gateways that none of them sees alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def judged(documents: Mapping[str, Any]) -> dict[str, Any]:
    """Return status documents; gateways that have one address at the same time are not `ok`.

    Each believes that the other is gone. Pure.
    """
    holders: dict[str, list[str]] = {}
    for host, found in documents.items():
        gateway = found.get("gateway") or {}
        if gateway.get("has_address"):
            holders.setdefault(str(gateway["address"]), []).append(host)
    told = dict(documents)
    for address, hosts in holders.items():
        if len(hosts) > 1:
            why = f"{' and '.join(hosts)} both have {address}: they do not hear each other; "
            why += "journalctl -u kimi-gateway-address on both"
            told |= {host: _split(told[host], why) for host in hosts}
    return told


def _split(found: Mapping[str, Any], why: str) -> dict[str, Any]:
    return {**found, "ok": False, "detail": f"{found['detail']}; {why}"}
