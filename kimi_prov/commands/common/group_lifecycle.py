"""Status of hosts that wait for a sleeping head: they only know that it does not answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import unit_names
from kimi_prov.on_host.endpoint import stop_state
from kimi_prov.on_host.group import lifecycle
from kimi_prov.on_host.lifecycle import status
from kimi_prov.on_host.system import group_state

if TYPE_CHECKING:
    from collections.abc import Mapping

# The state of such a host, by the head's state and its own supervisor's.
_WITH = {
    (status.STOPPING, group_state.WAITING): stop_state.ASLEEP,
    (stop_state.ASLEEP, group_state.WAITING): stop_state.ASLEEP,
    (status.STARTING, group_state.WAITING): status.STARTING,
    (status.STARTING, group_state.STARTING): status.STARTING,
}
# A rank ends after its head, and its unit starts again some seconds later. A head that goes to
# sleep first waits for requests in progress, five minutes at most.
_ENDS_WITHIN = timedelta(minutes=6)
_BETWEEN = ("activating", "deactivating")


def mark_sleeping_ranks(
    documents: Mapping[str, Any], now: datetime | None = None
) -> dict[str, Any]:
    """Return status documents in which a host that waits for a sleeping head is `ok` and asleep.

    The same holds for a host that starts with a head that is being woken, and for one that ended
    with a head that stops, or went to sleep within the last six minutes by the local clock (`now`).
    A host with another fault, or that the head refuses, is left as it is.
    """
    told = dict(documents)
    for host, found in documents.items():
        group = found.get("group") or {}
        head = documents.get(group.get("head", ""), {})
        rest = head.get("rest") or {}
        ended = (
            bool(group) and _is_ending(found) and _is_falling_asleep(head, now or datetime.now(UTC))
        )
        phase = group_state.WAITING if ended else str(group.get("phase"))
        state = _WITH.get((str(head.get("state")), phase))
        # A unit that is not active replaces the supervisor's message.
        waits = ended or found.get("detail") == group.get("said")
        waits = waits and lifecycle.NOT_EQUAL not in str(group.get("said"))
        if state and group["rank"] and waits and rest.get("since"):
            does = "is asleep" if state == stop_state.ASLEEP else "is being woken, asleep"
            told[host] = {
                **found,
                "ok": True,
                "state": state,
                "detail": f"{group['head']}, the head, {does} since {rest['since']}",
                "rest": {**(found.get("rest") or {}), "since": rest["since"]},
            }
    return told


def _is_ending(found: Mapping[str, Any]) -> bool:
    """Whether only a rank's unit is not active, and it is starting or stopping."""
    units = found.get("units")
    unit = units.get(unit_names.RANK) if isinstance(units, dict) else None
    only = found.get("detail") == f"not active: {unit_names.RANK}"
    return only and isinstance(unit, dict) and unit.get("state") in _BETWEEN


def _is_falling_asleep(head: Mapping[str, Any], now: datetime) -> bool:
    """Whether a head stops, or went to sleep so recently that its ranks may still be ending."""
    if head.get("state") == status.STOPPING:
        return True
    try:
        since = datetime.fromisoformat(str((head.get("rest") or {}).get("since")))
        return abs(now - since) <= _ENDS_WITHIN
    except (ValueError, TypeError):
        # No time, or a time without a zone.
        return False
