"""The open switch: a file that allows the rollback to what served, and its entry.

`/var/lib/kimi/state/switch.json`: written before the first file changes, removed after the verdict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths as layout
from kimi_prov.contract import unit_names
from kimi_prov.contract.unit_comparison import read_digest
from kimi_prov.on_host.engine import serve
from kimi_prov.on_host.history import entries
from kimi_prov.on_host.system import files, kept_state, plans, started, units

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kimi_prov.contract.documents.history import ServedSide
    from kimi_prov.contract.paths import Paths

WRITING, SWITCHING, RETURNING = "writing", "switching", "returning"
# Bytes reserved for the rollback, on a disk that may be full by then.
RESERVE_BYTES = 8 << 20
AT_BOOT = "the machine was restarted in the middle of the switch"


def read(paths: Paths) -> kept_state.State:
    """Return the open switch; empty where none is open."""
    return kept_state.read(paths, layout.SWITCH)


def write(paths: Paths, state: Mapping[str, Any]) -> None:
    """Write the open switch atomically."""
    files.write_json(str(paths.switch), state, mode=0o600)


def find_reserve_file(paths: Paths) -> Path:
    """Return the file that reserves disk space for the rollback."""
    return paths.switch.with_suffix(".reserve")


def close(paths: Paths) -> None:
    """Close the switch: from here on nothing rolls back by itself."""
    paths.switch.unlink(missing_ok=True)
    find_reserve_file(paths).unlink(missing_ok=True)


def is_under_way() -> bool:
    """Return whether the unit that switches runs."""
    state = units.read_states(unit_names.SWITCH).get(unit_names.SWITCH, {})
    return state.get("state") in ("activating", "deactivating")


def find_serving(paths: Paths, state: Mapping[str, Any]) -> ServedSide:
    """Return which of the two engines of an open switch runs: `former`, `new`, `both` or `none`."""
    places = started.UnitPaths(str(paths.root))
    plan = plans.read_machine_plan(paths.plan)
    names = [unit_names.get_engine_unit(row) for row in plan.get("instances") or ()]
    former = _read_digests(paths, entries.read(paths, int(state["from"])))
    shown = serve.read_states(names)
    running = {name: serve.read_running_digest(shown.get(name, {}), places) for name in names}
    told: set[ServedSide] = {
        "former" if former.get(name) == stamp else "new" for name, stamp in running.items() if stamp
    }
    return "both" if len(told) > 1 else next(iter(told), "none")


def _read_digests(paths: Paths, entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the config digest of each engine's unit in an entry."""
    found = {}
    for row in entry.get("files") or ():
        folder, _, name = row["path"].rpartition("/")
        if name == layout.SERVE_DROP_IN:
            copy = entries.find_copy(paths, entry, row["path"])
            found[folder.rpartition("/")[2].removesuffix(".d")] = read_digest(files.read_text(copy))
    return found


def end_entry(
    paths: Paths, entry: Mapping[str, Any], result: str, **more: object
) -> dict[str, Any]:
    """Write how an entry ended; return it."""
    ended = {**entry, "result": result, "ended_at": entries.format_now(), **more}
    entries.write(paths, ended)
    return ended


def report_cut_runs(paths: Paths, run: object) -> list[str]:
    """Describe how interrupted earlier runs ended; each is reported once.

    `run` reports its own result itself.
    """
    state = read(paths)
    said = []
    for entry in entries.read_all(paths):
        open_still = entry["number"] == state.get("to")
        if entry.get("told", True) or open_still or entry["result"] is None:
            continue
        entries.write(paths, {**entry, "told": True})
        if entry["run"] != run:
            said.append(
                f"the {entry['kind']} of {entry['started_at']} was cut before it could say how it "
                f"ended: {_finish_cut_entry(paths, entry)}"
            )
    return said


def _finish_cut_entry(paths: Paths, entry: Mapping[str, Any]) -> str:
    number = entry["number"]
    if entry["result"] == entries.DONE:
        return f"what it applied was served, {entries.describe_entry(entry)} (entry {number})"
    if entry["result"] == entries.INTERRUPTED:
        return f"{entry['why']} (entry {number})"
    former = entries.read(paths, int(entry["returned_to"]))
    went = (
        f"the machine went back to {entries.describe_entry(former)} (entry {entry['returned_to']})"
    )
    less = "" if entry["result"] == entries.RETURNED else ", which did not serve either"
    return f"{went}{less}: {entry['why']}"
