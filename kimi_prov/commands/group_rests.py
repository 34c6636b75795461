"""Hosts that wait for a head that is asleep: they know only that it is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.on_host.group import record
from kimi_prov.on_host.rest import mark, standing

if TYPE_CHECKING:
    from collections.abc import Mapping


def judged(documents: Mapping[str, Any]) -> dict[str, Any]:
    """Return status documents; a host that waits for a head that sleeps is `ok`, and asleep. Pure.

    One that lacks more than its head is left as it is.
    """
    told = dict(documents)
    for host, found in documents.items():
        group = found.get("group") or {}
        head = documents.get(group.get("head", ""), {})
        waits = found.get("state") == standing.SERVING and group.get("phase") == record.WAITING
        if waits and group["rank"] and head.get("state") == mark.ASLEEP:
            detail = f"waits for {group['head']}, the head, which is asleep"
            told[host] = {**found, "ok": True, "state": mark.ASLEEP, "detail": detail}
    return told
