"""How long a machine was stopped or asleep, and what that saved: history and figures.

If the disk is full, an event is missing in the history: this delays no stop and no start.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.on_host.system import files, kept_state
from kimi_prov.on_host.system.boot import find_boot_time, read_boot_id
from kimi_prov.on_host.system.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.status.lifecycle import RestedStatus
    from kimi_prov.contract.paths import Paths

SCHEMA = "kimi-prov/rests/v1"
_MAX_RESTS = 200
# This clock counts the time of a suspended machine too.
CLOCK = time.CLOCK_BOOTTIME


def read(paths: Paths) -> dict[str, Any]:
    """Return the history: `rests`, the last of them, and `seconds` and `times` of all.

    `off`: since when the machine is switched off because it was idle, until it has booted.
    """
    found = kept_state.read_log(paths.rests)
    rows = found.get("rests")
    return {
        "schema": SCHEMA,
        "times": int(found.get("times") or 0),
        "seconds": float(found.get("seconds") or 0),
        "rests": rows if isinstance(rows, list) else [],
        "off": found.get("off"),
    }


def read_boot() -> str:
    """Return the id of this boot of the machine; empty where unknown."""
    return read_boot_id(Machine())


def measure_rest(mark: Mapping[str, Any]) -> float:
    """Return how many seconds a stop has lasted until now.

    By the clock that counts from the boot, which cannot be set; over a boot by the clock of the
    day: if that was set back, the stop counts as 0 s.
    """
    if mark.get("boot") and mark["boot"] == read_boot():
        return max(0.0, time.clock_gettime(CLOCK) - float(mark["since_boot_s"]))
    return max(0.0, time.time() - float(mark.get("since_s") or time.time()))


def record_rest(paths: Paths, mark: Mapping[str, Any]) -> None:
    """Record that a stop has ended now."""
    _append_rest(paths, mark, round(measure_rest(mark)), time.time())


def record_power_off(paths: Paths, mark: Mapping[str, Any] | None) -> None:
    """Record since when the machine is off; None where it could not be switched off."""
    _write(paths, {**read(paths), "off": mark})


def record_power_on(paths: Paths) -> None:
    """Record that a machine was off until its boot, where the boot is a new one."""
    mark = read(paths)["off"]
    if not mark or mark.get("boot") == read_boot():
        return
    began = max(find_boot_time(), float(mark["since_s"]))
    seconds = round(began - float(mark["since_s"]))
    _append_rest(paths, mark, seconds, began, off=None)


def _append_rest(
    paths: Paths, mark: Mapping[str, Any], seconds: int, until_s: float, **more: object
) -> None:
    found = {**read(paths), **more}
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(until_s))
    row = {"state": mark.get("state"), "since": mark.get("since"), "until": until}
    found["times"] += 1
    found["seconds"] += seconds
    found["rests"] = [*found["rests"], {**row, "seconds": seconds}][-_MAX_RESTS:]
    _write(paths, found)


def _write(paths: Paths, found: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):
        files.make_directory(paths.state, 0o700)
        files.write_json(str(paths.rests), found, mode=0o600)


def describe_rests(paths: Paths, plan: MachinePlan, mark: Mapping[str, Any]) -> RestedStatus:
    """Return how long the machine was stopped in all, including now, and what that saved.

    By the plan's power of an idle machine: the power of a stopped machine is not measured, so this
    is an upper bound. Null where power or price is unknown.
    """
    found = read(paths)
    now = measure_rest(mark) if mark else 0.0
    hours = (found["seconds"] + now) / 3600
    rest = plan.get("rest")
    power = rest and rest.get("power")
    kwh = hours * power["idle_kw"] if power else None
    return {
        "times": found["times"] + bool(mark),
        "hours": round(hours, 2),
        "kwh_at_most": None if kwh is None else round(kwh, 2),
        "usd_at_most": None if kwh is None or not power else round(kwh * power["usd_per_kwh"], 2),
    }
