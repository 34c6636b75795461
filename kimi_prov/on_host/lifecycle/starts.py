"""How long the last starts on this machine took, and an estimate of the next one.

A start lasts from the request until the engine answered a chat, which is when its unit counts as
started. A start without a request (at a boot, after a crash) counts from when systemd started the
unit.

Decides: what stops a machine on purpose, and what its clients get as an answer (what a start
  takes).
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kimi_prov.contract import unit_names
from kimi_prov.contract.durations import format_duration
from kimi_prov.on_host.endpoint import stop_state
from kimi_prov.on_host.engine import engine_sleep
from kimi_prov.on_host.system import files, page_cache, units

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import BegunStart, ExpectedStart, MeasuredStart
    from kimi_prov.contract.documents.form import WeightsHeldIn
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.status.lifecycle import FirstAnswer
    from kimi_prov.contract.paths import Paths

SCHEMA = "kimi-prov/starts/v1"
# Where the weights were when a start began.
RAM_DISK: Final = "RAM disk"
PAGE_CACHE: Final = "page cache"
DISK: Final = "disk"
# Of an engine that sleeps.
HOST_MEMORY: Final = "host memory"
UNKNOWN: Final = "unknown"
_MAX_STARTS = 50
_LAST = 3
_CACHED = 0.9
_SHOWN = (
    "ActiveState",
    "InvocationID",
    "InactiveExitTimestampMonotonic",
    "ActiveEnterTimestampMonotonic",
)


def read_starts(paths: Paths) -> list[MeasuredStart]:
    """Return the stored starts, oldest first."""
    return [*(files.read_json(paths.starts).get("starts") or ())]


def begin(paths: Paths, plan: MachinePlan, by: str) -> BegunStart:
    """Record that a start is requested now; return what it will take (`expected`)."""
    held = find_weights_place(plan, stop_state.read(paths))
    begun = {"at_monotonic_s": time.monotonic(), "held": held, "by": by}
    files.write_json(str(paths.begun), begun, durable=False, mode=0o600)
    return {"held": held, "expected": estimate_start(paths, plan, held)}


def record_start(
    paths: Paths, plan: MachinePlan, *, first_token_s: float | None = None
) -> MeasuredStart | None:
    """Store how long the start of the running engine took; None where none has started.

    The time of the engine's first instance counts for all. For a start that is stored already, the
    stored row is returned, with `first_token_s` added to it. On a full disk it is not stored: this
    delays no start and no stop.
    """
    name = unit_names.get_engine_unit(plan["instances"][0])
    shown = units.read_properties([name], _SHOWN).get(name, {})
    if shown.get("ActiveState") != "active" or not shown.get("InvocationID"):
        return None
    rows = read_starts(paths)
    known = next((row for row in rows if row["id"] == shown["InvocationID"]), None)
    if known is None:
        known = _measure_start(paths, plan, shown)
        rows.append(known)
    elif first_token_s is None:
        return known
    if first_token_s is not None:
        known["first_token_s"] = first_token_s
    _store(paths, rows)
    return known


def record_wake(paths: Paths, plan: MachinePlan, seconds: float) -> MeasuredStart:
    """Store how long engines that slept took from the request until they answered."""
    files.remove(str(paths.begun))
    now = time.time()
    woken: MeasuredStart = {
        "id": f"wake-{now:.0f}",
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
        "seconds": round(seconds, 1),
        "held": HOST_MEMORY,
        "by": "wake",
        "engine": plan["engine"].get("env_name"),
        "model": plan["model"]["name"],
        "first_token_s": round(seconds, 1),
    }
    _store(paths, [*read_starts(paths), woken])
    return woken


def _store(paths: Paths, rows: list[MeasuredStart]) -> None:
    """Store the last starts; a full disk delays no start and no stop."""
    with contextlib.suppress(OSError):
        files.make_directory(paths.state, 0o700)
        files.write_json(
            str(paths.starts), {"schema": SCHEMA, "starts": rows[-_MAX_STARTS:]}, mode=0o600
        )


def _measure_start(paths: Paths, plan: MachinePlan, shown: Mapping[str, str]) -> MeasuredStart:
    ended = int(shown["ActiveEnterTimestampMonotonic"]) / 1e6
    unit = int(shown["InactiveExitTimestampMonotonic"]) / 1e6
    begun = files.read_json(paths.begun)
    asked = float(begun.get("at_monotonic_s") or 0)
    # A request for a start that came before this unit started, and after the start before it.
    ours = bool(begun) and asked <= unit
    files.remove(str(paths.begun))
    ago = time.clock_gettime(time.CLOCK_MONOTONIC) - ended
    return {
        "id": shown["InvocationID"],
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - ago)),
        "seconds": round(ended - (asked if ours else unit), 1),
        "held": begun["held"] if ours else UNKNOWN,
        "by": begun["by"] if ours else "systemd",
        "engine": plan["engine"].get("env_name"),
        "model": plan["model"]["name"],
    }


def estimate_start(paths: Paths, plan: MachinePlan, held: WeightsHeldIn) -> ExpectedStart:
    """Estimate the next start: `seconds` (null where unknown), and the source (`basis`).

    By the last starts of the same model with the weights in the same place; else by any of its
    starts here, else by the plan's estimate of the load.
    """
    own = [row for row in read_starts(paths) if row["model"] == plan["model"]["name"]]
    like = [row for row in own if row["held"] == held and held != UNKNOWN]
    # A wake is no start: neither tells what the other takes.
    others = [row for row in own if row["held"] != HOST_MEMORY]
    rows = (like or ([] if held == HOST_MEMORY else others))[-_LAST:]
    if rows:
        took = sorted(float(row["seconds"]) for row in rows)
        span = format_duration(took[0]) if took[0] == took[-1] else _format_span(took)
        place = f" from the {held}" if like else ""
        count = f"{len(rows)} starts" if len(rows) > 1 else "start"
        basis = f"the last {count}{place} on this machine took {span}"
        return {"seconds": took[len(took) // 2], "basis": basis}
    if held == HOST_MEMORY:
        return {"seconds": None, "basis": "no wake was measured on this machine yet"}
    load = (plan.get("throughput") or {}).get("load_s") or {}
    expected = load.get("expected")
    if expected:
        return {
            "seconds": float(expected),
            "basis": "the plan's estimate of the load; no start was measured here yet",
        }
    return {"seconds": None, "basis": "no start was measured on this machine yet"}


def describe_first_answers(paths: Paths, plan: MachinePlan) -> list[FirstAnswer]:
    """Return how long first requests waited for an answer, by where the weights were.

    Only the last requests that woke the machine with this model count.
    """
    found: dict[str, FirstAnswer] = {}
    for row in read_starts(paths):
        if row.get("first_token_s") is not None and row["model"] == plan["model"]["name"]:
            seconds = float(row["first_token_s"])
            found[row["held"]] = {"held": row["held"], "seconds": seconds, "at": row["at"]}
    return sorted(found.values(), key=lambda row: float(row["seconds"]))


def _format_span(took: list[float]) -> str:
    return f"{format_duration(took[0])} to {format_duration(took[-1])}"


def find_weights_place(plan: MachinePlan, rest: Mapping[str, object]) -> WeightsHeldIn:
    """Return where the weights are now: in the RAM disk, the page cache, or only on the disk.

    `rest`: the stop state; engines that sleep keep them in host memory.
    """
    if engine_sleep.is_engine_asleep(rest):
        return HOST_MEMORY
    disk = plan.get("ram_disk") or {}
    if disk.get("enabled"):
        stage = units.read_states(unit_names.STAGE).get(unit_names.STAGE, {})
        return RAM_DISK if stage.get("state") == "active" else DISK
    return _is_cached(Path(plan["model"]["serve_dir"]))


def _is_cached(directory: Path) -> WeightsHeldIn:
    try:
        sizes = [
            page_cache.measure_resident(file) for file in sorted(directory.glob("*.safetensors"))
        ]
    except OSError:
        return UNKNOWN
    whole = sum(size for _, size in sizes)
    if not whole:
        return UNKNOWN
    return PAGE_CACHE if sum(there for there, _ in sizes) >= _CACHED * whole else DISK


def list_memory_units(plan: MachinePlan) -> list[str]:
    """Name the units that hold the weights in memory, in the order in which they start."""
    named = (plan.get("ram_disk") or {}).get("units") or ()
    known = (unit_names.RAM_MOUNT, unit_names.STAGE, unit_names.WARM)
    return [name for name in known if name in named]
