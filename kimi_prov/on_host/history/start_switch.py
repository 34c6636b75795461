"""The begin of a switch: records what serves, before the first file changes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import groups, unit_names
from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import NOT_APPLIED, HostError, describe_error
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.on_host.history import applied, entries, open_switch
from kimi_prov.on_host.system import files, plans, units

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import (
        InterruptedSwitch,
        RollbackAnswer,
        SwitchAnswer,
        SwitchBegun,
        SwitchedGroup,
        TakenOver,
    )
    from kimi_prov.contract.documents.plan import Plan
    from kimi_prov.contract.paths import Paths


def start(paths: Paths, request: Mapping[str, Any]) -> SwitchAnswer:
    """Open a switch for an apply that changes what serves.

    `request`: `run` (id), `by`, `inventory`, `kimi_prov`, `min_speed`, `drain_s`, `start_s`,
    `frees`: directories that are removed first, with what serves (kimi_upgrade_in_place), `group`:
    the hosts that are to serve together. No switch is opened where nothing serves, or where other
    hosts serve together: then there is no version to roll back to. The answer also has
    `interrupted`, the switch that this one takes over, and `cut`, how interrupted runs ended.
    """
    found = _collect_interrupted(paths, request)
    interrupted = found["interrupted"]
    frees = [str(name) for name in request.get("frees") or ()]
    if frees and _list_serving_folders(paths) & {*frees}:
        return {**_free_room(paths, frees), **found}
    _remove(paths, frees)
    former = _find_former(paths, interrupted)
    if former and groups.list_hosts(entries.read_plan(paths, former)) != list(request["group"]):
        former = None
    if former is None:
        open_switch.close(paths)
        return {"opened": False, "interrupted": found["interrupted"], "cut": found["cut"]}
    return {**_open(paths, request, former, entries.APPLY), **found}


def _collect_interrupted(paths: Paths, request: Mapping[str, Any]) -> TakenOver:
    interrupted = _close_interrupted(paths)
    return {"interrupted": interrupted, "cut": open_switch.report_cut_runs(paths, request["run"])}


def _close_interrupted(paths: Paths) -> InterruptedSwitch | None:
    """Describe an earlier switch that was left open, and mark its entry so.

    Raises HostError while its unit still runs.
    """
    state = open_switch.read(paths)
    if not state:
        return None
    if open_switch.is_under_way():
        raise HostError(
            f"the switch that began at {state.get('since')} is still under way on this machine",
            f"wait for it:  journalctl -fu {unit_names.SWITCH}",
            retryable=True,
        )
    entry = entries.read(paths, int(state["to"]))
    if entry and entry["result"] is None:
        why = f"it was interrupted ({state['phase']})"
        open_switch.end_entry(paths, entry, entries.INTERRUPTED, why=why, told=True)
    left: InterruptedSwitch = {
        "entry": state["to"],
        "phase": state["phase"],
        "from": state["from"],
        "serves": open_switch.find_serving(paths, state),
    }
    return left


def _find_former(paths: Paths, interrupted: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the entry to roll back to: what serves now; None where nothing does."""
    if interrupted:
        entry: dict[str, Any] = entries.read(paths, int(interrupted["from"]))
        if entry and entries.explain_not_restorable(paths, entry) is None:
            return entry
    plan = plans.read_machine_plan(paths.plan)
    if not plan:
        return None
    names = [unit_names.get_engine_unit(row) for row in plan["instances"]]
    shown = units.read_states(*names)
    if any(shown.get(name, {}).get("state") != "active" for name in names):
        return None
    return ensure_entry(paths)


def ensure_entry(paths: Paths) -> dict[str, Any]:
    """Return the entry of the present files; made now where an earlier version did not."""
    digest = applied.hash_decided(applied.observe(paths))
    for entry in reversed(entries.read_all(paths)):
        served = entry["result"] == entries.DONE and entry["decided_sha256"] == digest
        if served and entries.explain_not_restorable(paths, entry) is None:
            return dict(entry)
    found = entries.capture_files(paths, entries.open_entry(paths, entries.FOUND, {}))
    return open_switch.end_entry(paths, found, entries.DONE)


def _open(
    paths: Paths,
    request: Mapping[str, Any],
    former: Mapping[str, Any],
    kind: str,
    restores: int | None = None,
) -> SwitchBegun:
    """Open the entry and the switch; before this, nothing of what serves changes."""
    files.make_directory(paths.state, 0o700)
    _reserve_room(paths)
    entry = entries.open_entry(paths, kind, request, restores=restores, told=False)
    open_switch.write(
        paths,
        {
            "phase": open_switch.WRITING,
            "run": request["run"],
            "kind": kind,
            "from": former["number"],
            "to": entry["number"],
            "restores": restores,
            "since": entries.format_now(),
            "min_speed": request.get("min_speed"),
            "drain_s": float(request.get("drain_s") or 0),
            "start_s": float(request["start_s"]),
        },
    )
    return {"opened": True, "from": former["number"], "to": entry["number"]}


def _reserve_room(paths: Paths) -> None:
    """Reserve disk space for the rollback. Raises HostError on a full disk."""
    place = open_switch.find_reserve_file(paths)
    try:
        with place.open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, open_switch.RESERVE_BYTES)
    except OSError as error:
        place.unlink(missing_ok=True)
        raise HostError(
            f"there is no space for a rollback: {format_bytes(open_switch.RESERVE_BYTES)} are "
            f"reserved below {layout.STATE}, and that failed: {describe_error(error)}",
            "free space on that file system: `kimi-prov clean` lists what no version needs",
        ) from None


def _free_room(paths: Paths, names: list[str]) -> SwitchBegun:
    """Stop and remove what serves, where the disk has no space for both; no rollback then."""
    plan = plans.read_machine_plan(paths.plan)
    for row in plan.get("instances") or ():
        units.run_systemctl("stop", unit_names.get_engine_unit(row))
    _remove(paths, names)
    open_switch.close(paths)
    return {"opened": False, "freed": names}


def _list_serving_folders(paths: Paths) -> set[str]:
    """Return the directories of what the present plan serves: weights and environment."""
    plan = plans.read_machine_plan(paths.plan)
    return {*entries.list_weights_folders(plan), str(plan["engine"]["env_dir"])} if plan else set()


def _remove(paths: Paths, names: list[str]) -> None:
    allowed = (layout.MODELS + "/", layout.ENGINES + "/")
    bad = [name for name in names if not name.startswith(allowed) or ".." in name.split("/")]
    if bad:
        raise HostError(f"{bad[0]} is not below {layout.MODELS} or {layout.ENGINES}")
    for name in names:
        entries.remove_tree(paths.locate(name))


def start_rollback(paths: Paths, request: Mapping[str, Any]) -> RollbackAnswer:
    """Open a switch to an entry of the history: `to`, or the last that served something else.

    A rollback that is at work goes on without the command that began it. The same command once more
    follows it: another one would go forward again.
    """
    if following := _find_running_rollback(paths, request):
        return following
    plan = plans.read_machine_plan(paths.plan)
    if not plan:
        raise HostError(*NOT_APPLIED)
    found = _collect_interrupted(paths, request)
    interrupted = found["interrupted"]
    # After an interrupted switch the files may be a mixture: the rollback is to what served before
    # it.
    cut_from = entries.read(paths, int(interrupted["from"])) if interrupted else {}
    whole = cut_from and entries.explain_not_restorable(paths, cut_from) is None
    current = cut_from if whole else ensure_entry(paths)
    target = _find_target(paths, current, request.get("to"))
    then = entries.read_plan(paths, target)
    hosts = groups.list_hosts(then)
    if hosts != groups.list_hosts(plan):
        raise HostError(
            f"entry {target['number']} was served by {', '.join(hosts) or 'this machine alone'}: "
            "other hosts than now",
            "put the former settings into the inventory, and run `kimi-prov apply`",
        )
    wanted = {**request, "start_s": then["timeouts"]["start_s"]}
    opened = _open(paths, wanted, current, entries.ROLLBACK, restores=target["number"])
    return {**opened, "restores": target["number"], "group": _describe_group(then), **found}


def _describe_group(plan: Plan) -> SwitchedGroup | None:
    """Describe the hosts that a plan is served by together; None where it is one host alone."""
    hosts = groups.list_hosts(plan)
    return {"hosts": hosts, "digest": groups.get_group(plan)["digest"]} if hosts else None


def _find_running_rollback(paths: Paths, request: Mapping[str, Any]) -> RollbackAnswer | None:
    """Return the rollback that its unit is doing, where it is the requested one."""
    state = open_switch.read(paths)
    if state.get("kind") != entries.ROLLBACK or not open_switch.is_under_way():
        return None
    if request.get("to") not in (None, state["restores"]):
        return None
    then = entries.read_plan(paths, entries.read(paths, int(state["restores"])))
    opened: SwitchBegun = {"opened": True, "from": int(state["from"]), "to": int(state["to"])}
    nothing: TakenOver = {"interrupted": None, "cut": []}
    restores = int(state["restores"])
    return {**opened, "restores": restores, "group": _describe_group(then), **nothing}


def _find_target(paths: Paths, current: Mapping[str, Any], number: int | None) -> dict[str, Any]:
    fix = "list the entries:  kimi-prov history INVENTORY"
    if number is None:
        for entry in reversed(entries.read_all(paths)):
            other = entry.get("decided_sha256") != current["decided_sha256"]
            served = entry["result"] == entries.DONE and entry["number"] < current["number"]
            if other and served and entries.explain_not_restorable(paths, entry) is None:
                return dict(entry)
        raise HostError("there is no earlier version whose files are kept", fix)
    chosen = entries.read(paths, number)
    if not chosen:
        raise HostError(f"there is no entry {number} in the history of this machine", fix)
    # Checked before its files: of equal versions only the last entry keeps files.
    if chosen["decided_sha256"] == current["decided_sha256"]:
        raise HostError(f"entry {number} is what is in place", fix)
    why = entries.explain_not_restorable(paths, chosen)
    if why:
        raise HostError(f"entry {number} cannot be restored: {why}", fix)
    return chosen
