"""Whether a machine serves, starts, sleeps or is stopped, for the other commands."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, cast

from kimi_prov.contract import gateways, unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.endpoint import stop_log, stop_state
from kimi_prov.on_host.engine import engine_sleep
from kimi_prov.on_host.lifecycle import session_history, starts
from kimi_prov.on_host.system import files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import MachinePlan, Plan
    from kimi_prov.contract.documents.status.lifecycle import IdleStatus, RestStatus
    from kimi_prov.contract.documents.status.machine import HostState
    from kimi_prov.contract.paths import Paths

SERVING: Final = "serving"
STARTING: Final = "starting"
STOPPING: Final = "stopping"
FAILED: Final = "failed"
# The timer runs every half a minute at most.
_STALE_S = 120.0
FIX = "kimi-prov start INVENTORY"


def find_refusal(paths: Paths) -> HostError | None:
    """Return why the model cannot be asked, where it is stopped or asleep; else None."""
    found = stop_state.read(paths)
    if not found:
        return None
    return HostError(f"the model is {stop_state.describe(found)}: it was not asked", FIX)


def decide_state(
    found: Mapping[str, Any],
    states: Mapping[str, Mapping[str, Any]],
    *,
    down: bool,
    wakes: bool = False,
) -> HostState:
    """Return the state of a host from the `states` of its engines' units.

    `down`: whether any part is not up. `found`: the stop state, empty where there is none. `wakes`:
    whether a request wakes the machine.
    """
    words = {row.get("state") for row in states.values()}
    if found and wakes:
        # The stop state of a sleep is kept until the engine has answered.
        return STARTING
    if engine_sleep.is_engine_asleep(found) and words == {"active"}:
        return "asleep"
    if found:
        return STOPPING if words - {"inactive", "failed"} else cast("HostState", found["state"])
    if not down:
        return SERVING
    return STARTING if "activating" in words else FAILED


def build_document(paths: Paths, plan: MachinePlan, found: Mapping[str, Any]) -> RestStatus:
    """Return the part of the status that says since when it is stopped, and what a start takes."""
    rows = starts.read_starts(paths)
    last = rows[-1] if rows else None
    return {
        "since": found.get("since"),
        "by": found.get("by"),
        "requests_cut": found.get("cut"),
        "start": starts.estimate_start(paths, plan, starts.find_weights_place(plan, found))
        if found
        else None,
        "failed": found.get("failed"),
        "idle": _build_idle(paths, plan),
        "paid": session_history.describe_history(paths, plan),
        "rested": stop_log.describe_rests(paths, plan, found),
        "last_start": {
            "at": last["at"],
            "seconds": last["seconds"],
            "held": last["held"],
            "by": last["by"],
        }
        if last
        else None,
        "first_answers": starts.describe_first_answers(paths, plan),
    }


def _build_idle(paths: Paths, plan: MachinePlan) -> IdleStatus | None:
    """Return when the machine will sleep because no client asks; None where it never does."""
    wished = (plan.get("rest") or {}).get("idle")
    if not wished:
        return None
    seen = files.read_json(paths.idle)
    left = seen.get("asleep_in_s")
    # It was checked some seconds ago; a result from before the last boot says nothing.
    ago = time.monotonic() - float(seen.get("looked_s") or 0)
    return {
        "after_seconds": wished["after_s"],
        "action": wished["action"],
        "wake": plan["rest"]["wake"],
        "asleep_in_seconds": max(0, round(float(left) - ago))
        if left is not None and 0 <= ago < _STALE_S
        else None,
        "why_not": seen.get("why_not") if seen else "not checked yet",
        "failed": seen.get("failed"),
    }


def list_watching_units(plan: Plan) -> list[str]:
    """Name the units without which the machine would not fall asleep, or not wake."""
    rest = plan.get("rest") or {}
    timer = [unit_names.IDLE_TIMER] if rest.get("idle") else []
    return [*timer, *([unit_names.WAKE_SOCKET] if rest.get("wake", "off") != "off" else [])]


def list_resting_units(paths: Paths, plan: Plan) -> tuple[str, ...]:
    """Name the units that do not run because of a stop or a sleep: they are no drift."""
    if not stop_state.read(paths):
        return ()
    engines = [unit_names.get_engine_unit(row) for row in plan.get("instances") or ()]
    if gateways.is_gateway(plan) or (plan.get("rest") or {}).get("memory") != "free":
        return tuple(engines)
    return (*engines, *starts.list_memory_units(plan))
