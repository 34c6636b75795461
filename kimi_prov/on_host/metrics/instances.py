"""The engine's instances over time: what runs, how long starts take, how many there were.

systemd reports only the present start. Earlier starts are counted from one reading to the next, and
stored: a start between two readings shows in systemd's count of restarts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract import groups, unit_names
from kimi_prov.on_host.system.exposition import Sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import MachinePlan

SHOWN = (
    "ActiveState", "InvocationID", "NRestarts", "ActiveEnterTimestampMonotonic",
    "InactiveExitTimestampMonotonic",
)  # fmt: skip
HELPS: dict[str, str] = {
    "kimi_instance_active": "1 while the engine's unit is up; it is up once its engine answers.",
    "kimi_instance_starting": "1 while the engine starts.",
    "kimi_instance_starting_seconds": "Duration of the present start so far; 0 without one.",
    "kimi_instance_last_start_seconds": "Duration of the last start that succeeded.",
    "kimi_instance_start_limit_seconds": "Time limit of a start.",
    "kimi_instance_starts_total": "Starts of the engine, since metrics are written.",
    "kimi_instance_restarts_total": "Starts by systemd because the engine ended.",
}
Kept = dict[str, Any]


def collect(
    plan: MachinePlan,
    shown: Mapping[str, Mapping[str, str]],
    kept: Mapping[str, Kept],
    now_us: int,
    boot: str,
) -> tuple[list[Sample], dict[str, Kept]]:
    """Return the samples, and the state for the next reading.

    On a rank of a group systemd starts the unit with the whole group: the head's metrics say that
    its engine ended by itself.

    `shown`: systemd's properties by unit; `now_us`: its clock, in microseconds since the boot;
    `boot`: the id of the boot.
    """
    samples: list[Sample] = []
    keep: dict[str, Kept] = {}
    tells = groups.serves_clients(plan)
    for instance in plan.get("instances") or ():
        unit = unit_names.get_engine_unit(instance)
        row = shown.get(unit, {})
        before = kept.get(unit) or {}
        keep[unit] = after = _count_start(before, row, boot)
        label = {"engine": str(instance["index"])}
        starting = row.get("ActiveState") == "activating"
        since = _get_number(row, "InactiveExitTimestampMonotonic")
        taken = max(0, now_us - since) / 1e6 if starting and since else 0
        limit = (plan.get("timeouts") or {}).get("unit_start_s")
        samples += [
            Sample("kimi_instance_active", row.get("ActiveState") == "active", label),
            Sample("kimi_instance_starting", starting, label),
            Sample("kimi_instance_starting_seconds", round(taken, 1), label),
            Sample("kimi_instance_last_start_seconds", after["last_start_s"], label),
            Sample("kimi_instance_start_limit_seconds", limit, label),
            Sample("kimi_instance_starts_total", after["starts"], label),
            Sample("kimi_instance_restarts_total", after["own_restarts"] if tells else None, label),
        ]
    return samples, keep


def _count_start(before: Kept, row: Mapping[str, str], boot: str) -> Kept:
    """Count a start where the unit's run is not that of the last reading."""
    invocation, restarts = row.get("InvocationID", ""), _get_number(row, "NRestarts")
    starts, own, seen = (
        int(before.get(name) or 0) for name in ("starts", "own_restarts", "restarts")
    )
    # systemd counts from 0 after a boot, and after each requested start.
    asked = before.get("boot") != boot or restarts < seen
    more = restarts if asked else restarts - seen
    if invocation and invocation != before.get("invocation"):
        starts += max(1, more + asked) if before else 1
    return {
        "boot": boot,
        "invocation": invocation or before.get("invocation", ""),
        "restarts": restarts,
        "starts": starts,
        # Starts before the first reading do not count.
        "own_restarts": own + more if before else 0,
        "last_start_s": _measure_start_s(row) or before.get("last_start_s"),
    }


def _measure_start_s(row: Mapping[str, str]) -> float | None:
    """Return how long the start of a unit that is up took."""
    began = _get_number(row, "InactiveExitTimestampMonotonic")
    up = _get_number(row, "ActiveEnterTimestampMonotonic")
    if row.get("ActiveState") != "active" or not began or up < began:
        return None
    return round((up - began) / 1e6, 1)


def _get_number(row: Mapping[str, str], name: str) -> int:
    text = row.get(name, "")
    return int(text) if text.isdigit() else 0
