"""Hosts that wait for a head that is asleep: they know only that it is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.on_host.group import record
from kimi_prov.on_host.rest import mark, standing

if TYPE_CHECKING:
    from collections.abc import Mapping

# What such a host does, by the head's state and how far its own supervisor is.
_WITH = {
    (mark.ASLEEP, record.WAITING): mark.ASLEEP,
    (standing.STARTING, record.WAITING): standing.STARTING,
    (standing.STARTING, record.STARTING): standing.STARTING,
}


def judged(documents: Mapping[str, Any]) -> dict[str, Any]:
    """Return status documents; a host that waits for a head that sleeps is `ok`, and asleep. Pure.

    So is one that starts with a head that somebody wakes. One that lacks more is left as it is.
    """
    told = dict(documents)
    for host, found in documents.items():
        group = found.get("group") or {}
        head = documents.get(group.get("head", ""), {})
        state = _WITH.get((str(head.get("state")), str(group.get("phase"))))
        rests = (head.get("rest") or {}).get("since")
        if state and rests and group["rank"] and found.get("state") == standing.SERVING:
            detail = f"{group['phase']}; {group['head']}, the head, is asleep since {rests}"
            told[host] = {**found, "ok": True, "state": state, "detail": detail}
    return told
