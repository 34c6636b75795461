"""The end of an apply: record its result, or roll back where it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.history import applied, entries, open_switch, rollback, unit
from kimi_prov.on_host.system import apply_lock, plans

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import EndedApply, RecordedApply, SwitchEndAnswer
    from kimi_prov.contract.paths import Paths


def close(paths: Paths, request: Mapping[str, Any]) -> SwitchEndAnswer:
    """Record the result of an apply that is `done`, or roll back where it failed before the switch.

    Finally releases the lock of `run`. `told`: what became of a switch that was left open.
    """
    try:
        found = _finish(paths, request)
    finally:
        # Released whatever failed above: the next run needs the lock.
        released = apply_lock.release(str(request["run"]))
    waits = paths.operator_new.exists() or paths.web_admin_new.exists()
    return {**found, **released, "key_waits": waits}


def _finish(paths: Paths, request: Mapping[str, Any]) -> EndedApply:
    state = open_switch.read(paths)
    told: list[str] = []
    if state and state.get("run") == request["run"]:
        told = _close_left_open(paths, state)
    elif not request["done"]:
        told = _follow_boot(paths, request)
    cut = open_switch.report_cut_runs(paths, request["run"])
    found: RecordedApply = {"entry": None}
    if request["done"] and not told and plans.read_machine_plan(paths.plan):
        found = record(paths, request)
    if request["done"] and state and not told and not open_switch.is_under_way():
        way = f"a boot would go back to entry {state['from']}"
        fix = "run `kimi-prov apply` without --tags, which ends it"
        told = [f"a switch was interrupted at {state['since']} and is still open: {way}; {fix}"]
    unit.forget_unit()
    return {**found, "told": [*cut, *told]}


def _follow_boot(paths: Paths, request: Mapping[str, Any]) -> list[str]:
    """Report that a boot restored what served; undo again what this run wrote since."""
    former = rollback.find_restored_at_boot(paths, request["run"])
    if former is None:
        return []
    if entries.has_files(paths, former):
        rollback.restore(paths, former)
    return [rollback.describe_restored_at_boot(former)]


def _close_left_open(paths: Paths, state: Mapping[str, Any]) -> list[str]:
    if open_switch.is_under_way():
        follow = f"journalctl -fu {unit_names.SWITCH}"
        return [f"the switch goes on by itself on the machine:  {follow}"]
    if state["phase"] == open_switch.WRITING and state["kind"] == entries.ROLLBACK:
        # Nothing has changed yet.
        entry = entries.read(paths, int(state["to"]))
        why = "the rollback did not begin"
        open_switch.end_entry(paths, entry, entries.INTERRUPTED, why=why)
        open_switch.close(paths)
        return []
    if state["phase"] != open_switch.WRITING:
        unit.start_unit(paths)
        return ["the machine goes back by itself to what served:   journalctl -fu kimi-switch"]
    try:
        rollback.go_back(paths, state, "the apply failed before the switch", lambda _: None)
    except HostError as error:
        return [error.message]
    return []


def record(paths: Paths, request: Mapping[str, Any]) -> RecordedApply:
    """Record what is applied now; as a new entry where it differs from the last one's."""
    document = applied.observe(paths)
    digest = applied.hash_decided(document)
    # An entry from a backup has no files, and says nothing of this machine.
    served = [
        row for row in entries.read_all(paths) if row["result"] == entries.DONE and row["files"]
    ]
    entry: Mapping[str, Any] = served[-1] if served else {}
    if entry.get("decided_sha256") != digest:
        opened = entries.open_entry(paths, entries.APPLY, request)
        entry = open_switch.end_entry(paths, entries.capture_files(paths, opened), entries.DONE)
    there = applied.read(paths)
    whole = {
        **document,
        "schema": applied.SCHEMA,
        "entry": entry["number"],
        "at": entries.format_now(),
        "by": request.get("by"),
        "inventory": request.get("inventory"),
        "kimi_prov": request.get("kimi_prov"),
    }
    moving = ("at", "by")
    if {k: v for k, v in there.items() if k not in moving} != {
        k: v for k, v in whole.items() if k not in moving
    }:
        applied.write(paths, whole)
    # A rollback requests none to be removed.
    keep, state = request.get("keep"), open_switch.read(paths)
    spare = [int(state[name]) for name in ("from", "to")] if state else []
    dropped = entries.prune(paths, int(keep), spare) if keep else []
    return {"entry": entry["number"], "dropped": dropped}
