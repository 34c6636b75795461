"""The rollback to what served: by the unit that switches, by a failed apply, or by a boot."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths as layout
from kimi_prov.contract import unit_names
from kimi_prov.contract.durations import format_duration
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.on_host.endpoint import firewall
from kimi_prov.on_host.engine import serve
from kimi_prov.on_host.history import engines, entries, open_switch
from kimi_prov.on_host.proxy import converge
from kimi_prov.on_host.system import plans, started, units
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.paths import Paths

_KERNEL = {
    layout.SYSCTL: ("sysctl", "--quiet", "--load", layout.SYSCTL),
    layout.TUNING_TMPFILES: ("systemd-tmpfiles", "--create", layout.TUNING_TMPFILES),
}


class StuckError(HostError):
    """The rollback failed: its obstacle may disappear, and it is tried again."""


def go_back(paths: Paths, state: Mapping[str, Any], why: str, tell: engines.Tell) -> str:
    """Restore what served, wait for it and verify it. Always raises HostError with the reason.

    StuckError where the files could not be restored.
    """
    why += _describe_full_disk(paths)
    state = {**state, "phase": open_switch.RETURNING, "why": why}
    number = int(state["from"])
    former = entries.read(paths, number)
    entry = entries.read(paths, int(state["to"]))
    if entry["serves"] is None:
        entry["serves"] = entries.describe_served(paths)
    tell("going back to what served")
    since = time.monotonic()
    open_switch.find_reserve_file(paths).unlink(missing_ok=True)
    try:
        open_switch.write(paths, state)
        restore(paths, former)
    except Exception as error:  # noqa: BLE001
        # Left open: the unit tries again; so do the end of the apply, the next boot and apply.
        failed = wrap_error(error)
        raise StuckError(f"{why}. The rollback failed: {failed.message}", failed.fix) from None
    try:
        plan = plans.read_machine_plan(paths.plan)
        own_s = float((plan.get("timeouts") or {}).get("start_s") or 0)
        engines.wait_for_token(paths, max(own_s, state["start_s"]), tell)
        engines.verify(paths, plan)
    except Exception as error:  # noqa: BLE001
        failed = wrap_error(error)
        open_switch.end_entry(paths, entry, entries.FAILED, why=why, returned_to=number)
        open_switch.close(paths)
        raise HostError(
            f"{why}. The machine went back to entry {number}, which does not serve either: "
            f"{failed.message}",
            failed.fix,
        ) from None
    ended = open_switch.end_entry(paths, entry, entries.RETURNED, why=why, returned_to=number)
    open_switch.close(paths)
    raise HostError(
        f"{why}. The machine went back by itself to entry {number} of its history: "
        f"{entries.describe_entry(former)} serves again, "
        f"{format_duration(time.monotonic() - since)} later",
        "fix what the reason names, or the inventory, and run `kimi-prov apply` again; "
        f"`kimi-prov history` shows entry {ended['number']}",
    )


def _describe_full_disk(paths: Paths) -> str:
    """Return that the disk is full, which errors seldom say; empty where it is not."""
    about = os.statvfs(str(paths.state))
    free_bytes = about.f_bavail * about.f_frsize
    if free_bytes >= open_switch.RESERVE_BYTES:
        return ""
    return f" (the disk is full: {format_bytes(free_bytes)} free below {layout.STATE})"


def wrap_error(error: Exception) -> HostError:
    """Return an error as a HostError that says what happened."""
    if isinstance(error, HostError):
        return error
    if isinstance(error, OSError):
        return HostError.from_system(error)
    return HostError(f"{type(error).__name__}: {describe_error(error)}")


def restore(paths: Paths, entry: Mapping[str, Any]) -> None:
    """Restore the files of an entry, and make the running services follow them."""
    places = started.UnitPaths(str(paths.root))
    extra = entries.list_surplus(paths, entry)
    for path in extra:
        _remove_file(paths, path, places)
    changed = entries.restore(paths, entry)
    gone = ["/" + str(path.relative_to(paths.root)) for path in extra]
    if any(name.startswith(layout.UNITS + "/") for name in [*changed, *gone]):
        units.run_systemctl("daemon-reload")
    entries.converge_enabled(paths, entry)
    _follow(entry, changed)
    plan = plans.read_machine_plan(paths.plan)
    _refill(paths, plan, changed)
    if paths.locate(f"{layout.UNITS}/{unit_names.FIREWALL}").exists():
        if layout.FIREWALL in changed:
            units.control("reload-or-restart", unit_names.FIREWALL)
        # A plan of an earlier version may name its ports otherwise: its own table is loaded.
        if "ports" in plan["firewall"]:
            firewall.ensure(paths, dict(plan["firewall"]))
    if paths.locate(f"{layout.UNITS}/{unit_names.PROXY}").exists():
        converge.converge(paths)
    engines.start_planned(paths)


def _follow(entry: Mapping[str, Any], changed: list[str]) -> None:
    """Make the kernel and the services beside the engine read what changed."""
    for name in entries.BESIDE:
        if name in entry["enabled"] and f"{layout.UNITS}/{name}" in changed:
            run("systemctl", "restart", "--no-block", name)
    for name, command in _KERNEL.items():
        if name in changed:
            run(*command)


def _remove_file(paths: Paths, path: Path, places: started.UnitPaths) -> None:
    """Remove a file that an entry does not have, and its unit."""
    name = path.parent.name.removesuffix(".d") if path.name == layout.SERVE_DROP_IN else path.name
    if path.name == layout.SERVE_DROP_IN:
        serve.remove(name, places, keep=[places.file(name)])
    elif path.parent == paths.units and name != unit_names.SERVE_TEMPLATE:
        run("systemctl", "disable", "--now", "--quiet", name, timeout=300)
        run("systemctl", "reset-failed", name)
    path.unlink(missing_ok=True)


def _refill(paths: Paths, plan: MachinePlan, changed: list[str]) -> None:
    """Restart the units of the weights where their files changed."""
    mine = {
        unit_names.FETCH: [layout.WEIGHTS],
        **{name: [layout.WEIGHTS, layout.STAGE] for name in engines.FILLS},
    }
    for name, reads in mine.items():
        unit = f"{layout.UNITS}/{name}"
        if paths.locate(unit).exists() and any(one in changed for one in (unit, *reads)):
            units.run_systemctl("restart", "--no-block", name)
    mount = f"{layout.UNITS}/{unit_names.RAM_MOUNT}"
    if mount in changed and (plan.get("ram_disk") or {}).get("enabled"):
        # A RAM disk with more than its former size is made smaller when it has been filled again.
        run("systemctl", "reload-or-restart", unit_names.RAM_MOUNT)


def restore_at_boot(paths: Paths) -> str:
    """Restore the files of what served before the engines start, where a switch was interrupted."""
    state = open_switch.read(paths)
    if not state:
        return "no switch was interrupted"
    open_switch.find_reserve_file(paths).unlink(missing_ok=True)
    former = entries.read(paths, int(state["from"]))
    if not entries.has_files(paths, former):
        entry = entries.read(paths, int(state["to"]))
        if entry:
            open_switch.end_entry(paths, entry, entries.INTERRUPTED, why=open_switch.AT_BOOT)
        open_switch.close(paths)
        gone = f"entry {state['from']} has no files any more: what is there stays"
        return f"{open_switch.AT_BOOT}, but {gone}"
    wanted = entries.describe_served(paths)
    extra = entries.list_surplus(paths, former)
    for path in extra:
        path.unlink(missing_ok=True)
        if path.name == layout.SERVE_DROP_IN:
            with contextlib.suppress(OSError):
                path.parent.rmdir()
    changed = entries.restore(paths, former)
    units.run_systemctl("daemon-reload")
    entries.converge_enabled(paths, former)
    # These units start before this unit can run.
    early = {
        unit_names.FIREWALL: layout.FIREWALL,
        unit_names.RAM_MOUNT: f"{layout.UNITS}/{unit_names.RAM_MOUNT}",
    }
    for name, reads in early.items():
        if reads in changed:
            run("systemctl", "try-reload-or-restart", "--no-block", name)
    # The jobs of this boot were made before these units were enabled.
    if former["enabled"]:
        run("systemctl", "start", "--no-block", *former["enabled"])
    entry = entries.read(paths, int(state["to"]))
    if entry:
        more = {"serves": wanted, "returned_to": former["number"]}
        open_switch.end_entry(paths, entry, entries.RETURNED, why=open_switch.AT_BOOT, **more)
    open_switch.close(paths)
    return describe_restored_at_boot(former)


def describe_restored_at_boot(former: Mapping[str, Any]) -> str:
    """Describe what a boot restored."""
    return (
        f"{open_switch.AT_BOOT}: {entries.describe_entry(former)} starts again, entry "
        f"{former['number']}"
    )


def find_restored_at_boot(paths: Paths, run: object) -> dict[str, Any] | None:
    """Return what a boot restored in the middle of this run; None where there was none."""
    entry = entries.read_last(paths)
    if entry.get("run") != run or entry["why"] != open_switch.AT_BOOT:
        return None
    return entries.read(paths, int(entry["returned_to"]))


def require_no_boot(paths: Paths, request: Mapping[str, Any]) -> dict[str, Any]:
    """Raise HostError where a boot ended the switch of `run`, which still writes files."""
    former = find_restored_at_boot(paths, request["run"])
    if former:
        raise HostError(describe_restored_at_boot(former), "run `kimi-prov apply` again")
    return {}
