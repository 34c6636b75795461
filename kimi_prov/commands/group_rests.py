"""Hosts that wait for a head that is asleep: they know only that it is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.on_host.group import lifecycle, record
from kimi_prov.on_host.rest import mark, standing

if TYPE_CHECKING:
    from collections.abc import Mapping

# What such a host does, by the head's state and how far its own supervisor is.
_WITH = {
    (standing.STOPPING, record.WAITING): mark.ASLEEP,
    (mark.ASLEEP, record.WAITING): mark.ASLEEP,
    (standing.STARTING, record.WAITING): standing.STARTING,
    (standing.STARTING, record.STARTING): standing.STARTING,
}


def judged(documents: Mapping[str, Any]) -> dict[str, Any]:
    """Return status documents; a host that waits for a head that sleeps is `ok`, and asleep. Pure.

    So is one that starts with a head that somebody wakes. One that lacks more, or that the head
    refuses, is left as it is.
    """
    told = dict(documents)
    for host, found in documents.items():
        group = found.get("group") or {}
        head = documents.get(group.get("head", ""), {})
        state = _WITH.get((str(head.get("state")), str(group.get("phase"))))
        rest = head.get("rest") or {}
        # What is not active is told in the place of what the supervisor said.
        waits = found.get("detail") == group.get("said") and lifecycle.NOT_EQUAL not in str(
            group.get("said")
        )
        if state and group["rank"] and waits and rest.get("since"):
            does = "is asleep" if state == mark.ASLEEP else "is being woken, asleep"
            told[host] = {
                **found,
                "ok": True,
                "state": state,
                "detail": f"{group['head']}, the head, {does} since {rest['since']}",
                "rest": {**(found.get("rest") or {}), "since": rest["since"]},
            }
    return told
