"""The switch from what serves to what was applied, and the way back to it.

    switch begin < REQUEST      before the first file changes: note what serves, and open the switch
    switch rollback < REQUEST   the same, for a rollback to an entry of the history
    switch start                let kimi-switch.service drain, stop, start, verify and measure
    switch run                  that unit
    switch boot                 kimi-return.service: put back what served, where a switch was cut
    switch end < REQUEST        after an apply: go back where it failed, else note what was applied

An open switch is a file, `/var/lib/kimi/state/switch.json`: written before the first file changes,
removed after the verdict. As long as it is there, what served can be put back: by the unit itself,
by the end of a failed apply, by the next boot, or by the next apply.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Mapping

from kimi_prov.contract import paths as layout
from kimi_prov.contract import unit_names
from kimi_prov.contract.durations import duration
from kimi_prov.contract.errors import HostError, plain
from kimi_prov.contract.paths import Paths
from kimi_prov.contract.unit_form import stamp_in
from kimi_prov.on_host.engine import serve
from kimi_prov.on_host.gateway import checks, firewall, haproxy, proxy, smoke_test, tls
from kimi_prov.on_host.history import applied, entries, speed
from kimi_prov.on_host.system import apply_lock, files, started, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.process import run
from kimi_prov.on_host.system.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path

Tell = Callable[[str], None]
WRITING, SWITCHING, RETURNING = "writing", "switching", "returning"
# Room for the way back on a disk that is full by then.
RESERVE_BYTES = 8 << 20
_STEP_S = 1.0
# Of the probe of a new engine that seems too slow: clients come back at that moment.
_TRIES, _BETWEEN_TRIES_S = 3, 20.0
_AT_BOOT = "the machine was restarted in the middle of the switch"
_FILLS = (unit_names.STAGE, unit_names.WARM)
_WEIGHTS = (unit_names.FETCH, unit_names.CONVERT, *_FILLS)
_KERNEL = {
    layout.SYSCTL: ("sysctl", "--quiet", "--load", layout.SYSCTL),
    layout.TUNING_TMPFILES: ("systemd-tmpfiles", "--create", layout.TUNING_TMPFILES),
}


def read(paths: Paths) -> dict[str, Any]:
    """Return the open switch; empty where none is open."""
    return files.read_json(paths.switch)


def _write(paths: Paths, state: Mapping[str, Any]) -> None:
    files.write_json(str(paths.switch), state, mode=0o600)


def _reserve(paths: Paths) -> Path:
    return paths.switch.with_suffix(".reserve")


def under_way() -> bool:
    """Whether the unit that switches is at work."""
    state = units.show(unit_names.SWITCH).get(unit_names.SWITCH, {})
    return state.get("state") in ("activating", "deactivating")


# --- begin -----------------------------------------------------------------------------------


def begin(paths: Paths, request: Mapping[str, Any]) -> dict[str, Any]:
    """Open a switch for an apply that changes what serves.

    `request`: `run` (id), `by`, `inventory`, `kimi_prov`, `min_speed`, `drain_s`, `start_s`,
    `frees`: directories that are removed first, with what serves (kimi_upgrade_in_place),
    `together`: whether several hosts are to serve the model. Not opened where nothing serves: then
    there is nothing to go back to. Nor for hosts together, which have no way back: one that was
    left open would hold the engine back, and be put back by the next boot.
    """
    interrupted = _interrupted(paths)
    frees = [str(name) for name in request.get("frees") or ()]
    if frees and _serving(paths) & {*frees}:
        return {**_freed(paths, frees), "interrupted": interrupted}
    _remove(paths, frees)
    former = None if request.get("together") else _former(paths, interrupted)
    if former is None:
        _close(paths)
        return {"opened": False, "interrupted": interrupted}
    return {**_open(paths, request, former, entries.APPLY), "interrupted": interrupted}


def _interrupted(paths: Paths) -> dict[str, Any] | None:
    """Say what an earlier switch left that nobody ended, and mark its entry so.

    Raises HostError while its unit is still at work.
    """
    state = read(paths)
    if not state:
        return None
    if under_way():
        raise HostError(
            f"the switch that began at {state.get('since')} is still under way on this machine",
            f"wait for it:  journalctl -fu {unit_names.SWITCH}",
            retryable=True,
        )
    entry = entries.read(paths, int(state["to"]))
    if entry and entry["result"] is None:
        why = f"it was interrupted ({state['phase']})"
        _end(paths, entry, entries.INTERRUPTED, why=why)
    return {
        "entry": state["to"],
        "phase": state["phase"],
        "from": state["from"],
        "serves": which_serves(paths, state),
    }


def which_serves(paths: Paths, state: Mapping[str, Any]) -> str:
    """Say which of the two engines of an open switch runs: `former`, `new`, `both` or `none`."""
    places = started.UnitPaths(str(paths.root))
    plan = files.read_json(paths.plan)
    names = [unit_names.engine(row) for row in plan.get("instances") or ()]
    former = _stamps(paths, entries.read(paths, int(state["from"])))
    shown = serve.show(names)
    running = {name: serve.stamp_of(shown.get(name, {}), places) for name in names}
    told = {
        "former" if former.get(name) == stamp else "new" for name, stamp in running.items() if stamp
    }
    return "both" if len(told) > 1 else next(iter(told), "none")


def _stamps(paths: Paths, entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the stamp of each engine's unit in an entry."""
    found = {}
    for row in entry.get("files") or ():
        folder, _, name = row["path"].rpartition("/")
        if name == layout.SERVE_DROP_IN:
            copy = entries.copy_of(paths, entry, row["path"])
            found[folder.rpartition("/")[2].removesuffix(".d")] = stamp_in(files.read_text(copy))
    return found


def _former(paths: Paths, interrupted: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the entry to go back to: what serves now; None where nothing does."""
    if interrupted:
        entry: dict[str, Any] = entries.read(paths, int(interrupted["from"]))
        if entry and entries.restorable(paths, entry) is None:
            return entry
    plan = files.read_json(paths.plan)
    if not plan or plan.get("group"):
        return None
    names = [unit_names.engine(row) for row in plan["instances"]]
    shown = units.show(*names)
    if any(shown.get(name, {}).get("state") != "active" for name in names):
        return None
    return as_entry(paths)


def as_entry(paths: Paths) -> dict[str, Any]:
    """Return the entry whose files are in place; made where a version before this one did not."""
    digest = applied.digest(applied.observe(paths))
    for entry in reversed(entries.every(paths)):
        served = entry["result"] == entries.DONE and entry["decided_sha256"] == digest
        if served and entries.restorable(paths, entry) is None:
            return dict(entry)
    found = entries.capture(paths, entries.open_entry(paths, entries.FOUND, {}))
    return _end(paths, found, entries.DONE)


def _open(
    paths: Paths,
    request: Mapping[str, Any],
    former: Mapping[str, Any],
    kind: str,
    restores: int | None = None,
) -> dict[str, Any]:
    """Open the entry and the switch; nothing of what serves has changed before that."""
    files.make_directory(paths.state, 0o700)
    with _reserve(paths).open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, RESERVE_BYTES)
    entry = entries.open_entry(paths, kind, request, restores=restores)
    _write(
        paths,
        {
            "phase": WRITING,
            "run": request["run"],
            "kind": kind,
            "from": former["number"],
            "to": entry["number"],
            "restores": restores,
            "since": entries.now(),
            "min_speed": request.get("min_speed"),
            "drain_s": float(request.get("drain_s") or 0),
            "start_s": float(request["start_s"]),
        },
    )
    return {"opened": True, "from": former["number"], "to": entry["number"]}


def _freed(paths: Paths, names: list[str]) -> dict[str, Any]:
    """Stop what serves and remove it, where both have no room; there is no way back from here."""
    plan = files.read_json(paths.plan)
    for row in plan.get("instances") or ():
        units.systemctl("stop", unit_names.engine(row))
    _remove(paths, names)
    _close(paths)
    return {"opened": False, "freed": names}


def _serving(paths: Paths) -> set[str]:
    """Return the directories of what the plan in place serves: weights and environment."""
    plan = files.read_json(paths.plan)
    return {*entries.weights_of(plan), str(plan["engine"]["env_dir"])} if plan else set()


def _remove(paths: Paths, names: list[str]) -> None:
    allowed = (layout.MODELS + "/", layout.ENGINES + "/")
    bad = [name for name in names if not name.startswith(allowed) or ".." in name.split("/")]
    if bad:
        raise HostError(f"{bad[0]} is not below {layout.MODELS} or {layout.ENGINES}")
    for name in names:
        entries.remove_tree(paths.at(name))


def rollback(paths: Paths, request: Mapping[str, Any]) -> dict[str, Any]:
    """Open a switch to an entry of the history: `to`, or the last that served something else."""
    plan = files.read_json(paths.plan)
    if not plan:
        raise HostError(f"there is no {paths.plan}", "run `kimi-prov apply` first")
    if plan.get("group"):
        raise HostError(
            "several hosts serve this model together: they do not roll back by themselves yet",
            "put the former settings into the inventory, and run `kimi-prov apply`",
        )
    interrupted = _interrupted(paths)
    # Of a switch that was cut the files may be a mixture: what served before it is the way back.
    cut_from = entries.read(paths, int(interrupted["from"])) if interrupted else {}
    whole = cut_from and entries.restorable(paths, cut_from) is None
    current = cut_from if whole else as_entry(paths)
    target = _target(paths, current, request.get("to"))
    limit_s = entries.plan_of(paths, target)["timeouts"]["start_s"]
    wanted = {**request, "start_s": limit_s}
    opened = _open(paths, wanted, current, entries.ROLLBACK, restores=target["number"])
    return {**opened, "restores": target["number"], "interrupted": interrupted}


def _target(paths: Paths, current: Mapping[str, Any], number: int | None) -> dict[str, Any]:
    fix = "see which there are:  kimi-prov history INVENTORY"
    if number is None:
        for entry in reversed(entries.every(paths)):
            other = entry.get("decided_sha256") != current["decided_sha256"]
            served = entry["result"] == entries.DONE and entry["number"] < current["number"]
            if other and served and entries.restorable(paths, entry) is None:
                return dict(entry)
        raise HostError("there is no earlier version whose files are kept", fix)
    chosen = entries.read(paths, number)
    if not chosen:
        raise HostError(f"there is no entry {number} in the history of this machine", fix)
    why = entries.restorable(paths, chosen)
    if why:
        raise HostError(f"entry {number} cannot be put back: {why}", fix)
    if chosen["decided_sha256"] == current["decided_sha256"]:
        raise HostError(f"entry {number} is what is in place", fix)
    return chosen


# --- the unit --------------------------------------------------------------------------------


def start(paths: Paths) -> dict[str, Any]:
    """Start the unit that switches, where a switch is open."""
    if not read(paths):
        return {"started": False}
    run("systemctl", "stop", unit_names.SWITCH)
    run("systemctl", "reset-failed", unit_names.SWITCH)
    done = run(
        *("systemd-run", "--quiet", "--no-block", f"--unit={unit_names.SWITCH}"),
        "--description=Kimi: switch to what was applied, or back",
        *("--service-type=oneshot", "--remain-after-exit"),
        # It starts engines and waits for them: its own parts have their limits.
        *("--property=TimeoutStartSec=infinity", "--property=KillMode=process"),
        # Killed, it goes on: back.
        *("--property=Restart=on-abnormal", "--property=RestartSec=1"),
        *(sys.executable, "-I", layout.ZIPAPP, "switch", "run"),
    )
    if done.returncode != 0:
        raise HostError(f"{unit_names.SWITCH} cannot be started: {done.stderr.strip()}")
    return {"started": True}


def switch(paths: Paths, tell: Tell) -> str:
    """Do the open switch; returns how it ended in one sentence. Raises HostError after going back.

    One that was cut in the middle goes back.
    """
    state = read(paths)
    if not state:
        return "nothing was to be switched"
    try:
        if state["phase"] != WRITING:
            return go_back(paths, state, state.get("why") or "the switch was cut", tell)
        state = {**state, "phase": SWITCHING}
        _write(paths, state)
        try:
            return _forward(paths, state, tell)
        # Whatever it was: nobody else would start what served.
        except Exception as error:  # noqa: BLE001
            return go_back(paths, state, _told(error).message, tell)
    finally:
        # An engine that answers late is served: HAProxy's own checks keep out what does not.
        balance(paths, "ready")


def _forward(paths: Paths, state: dict[str, Any], tell: Tell) -> str:
    former = entries.read(paths, int(state["from"]))
    old = entries.plan_of(paths, former)
    before = None
    since = None
    restarts = state["kind"] == entries.ROLLBACK or _restarts(paths)
    if restarts:
        tell("measuring what serves")
        before = speed.probe(paths, old)
        # Kept at once: the way back tells it too.
        entries.amend(paths, int(state["to"]), speed_before=before)
        tell("waiting for the requests under way")
        since = time.monotonic()
        drain(paths, state["drain_s"])
        if state["kind"] == entries.ROLLBACK:
            put_back(paths, entries.read(paths, int(state["restores"])))
        else:
            start_planned(paths)
    plan = files.read_json(paths.plan)
    wait(paths, state["start_s"], tell)
    away = None if since is None else round(time.monotonic() - since, 1)
    after, rows = None, None
    if restarts:
        tell("verifying")
        rows = verify(paths, plan)
        tell("measuring what serves now")
        after, slow = _measured(paths, plan, before, state.get("min_speed"))
        if slow:
            raise HostError(slow)
    entry = entries.capture(paths, entries.read(paths, int(state["to"])))
    ended = _end(
        paths,
        entry,
        entries.DONE,
        speed=after,
        seconds_without_service=away,
        checks=rows,
    )
    _close(paths)
    told = f"{entries.text(ended)} serves"
    if restarts:
        told += f", {speed.compared(before, after)}; {duration(away or 0)} without service"
    return told


def _measured(
    paths: Paths, plan: Mapping[str, Any], before: Mapping[str, Any] | None, least: float | None
) -> tuple[dict[str, Any] | None, str | None]:
    """Measure what serves now, and say whether it is too slow; a busy moment gets more tries."""
    after, slow = None, None
    for number in range(_TRIES):
        time.sleep(_BETWEEN_TRIES_S if number else 0)
        after = speed.probe(paths, plan)
        slow = speed.too_slow(before, after, least)
        if not slow:
            break
    return after, slow


def _restarts(paths: Paths) -> bool:
    """Whether an engine runs otherwise than planned, or not at all."""
    places = started.UnitPaths(str(paths.root))
    wanted = serve.planned(files.read_json(paths.plan), places)
    found = serve.ensure(*wanted, places, check=True)
    return bool(found["started"] or found["restarted"] or found["removed"])


def start_planned(paths: Paths) -> None:
    """Let exactly the engines of the plan in place run."""
    places = started.UnitPaths(str(paths.root))
    serve.ensure(*serve.planned(files.read_json(paths.plan), places), places, check=False)


def drain(paths: Paths, limit_s: float) -> int:
    """Let no new request reach an engine and wait for those under way; returns how many are left.

    HAProxy answers 503 meanwhile. Without HAProxy there is nothing to wait for.
    """
    if not limit_s:
        return 0
    balance(paths, "drain")
    until = time.monotonic() + limit_s
    left = 0
    with contextlib.suppress(OSError, HostError):
        while True:
            left = sum(int(row["requests"]) for row in haproxy.servers(paths.socket))
            if not left or time.monotonic() >= until:
                break
            time.sleep(0.2)
    return left


def balance(paths: Paths, state: str) -> None:
    """Put every engine of the proxy into `drain` or `ready`."""
    with contextlib.suppress(OSError, HostError):
        for row in haproxy.servers(paths.socket):
            haproxy.set_state(paths.socket, int(str(row["name"])[len("engine") :]), state)


def wait(paths: Paths, limit_s: float, tell: Tell) -> None:
    """Wait for a token through the port. Raises HostError where the engine fails or time is up.

    `limit_s` counts from when the weights are in place: filling the RAM disk has its own limit.
    The engines come into the balance when they are ready: one that still stops takes no request.
    """
    until = time.monotonic() + limit_s
    restarts: dict[str, int] = {}
    names = [unit_names.engine(row) for row in files.read_json(paths.plan)["instances"]]
    while True:
        apply_lock.renew()
        if any(unit.get("state") == "activating" for unit in units.show(*_WEIGHTS).values()):
            until = time.monotonic() + limit_s
        if all(unit["state"] == "active" for unit in units.show(*names).values()):
            balance(paths, "ready")
        seen = smoke_test.smoke_test(paths, _STEP_S, restarts)
        if seen["answered"]:
            return
        restarts = seen["restarts"]
        tell(f"the engine is loading: {seen['line']}")
        if time.monotonic() >= until:
            raise HostError(
                f"no token within {duration(limit_s)} ({seen['refusal']}); the engine's last "
                f"line: {seen['line']}"
            )


def verify(paths: Paths, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run verify's checks through the port. Raises HostError naming those that fail."""
    subject = checks.subject_of(
        dict(plan),
        "127.0.0.1",
        tls.fingerprint(files.read_text(paths.tls_crt)),
        files.read_text(paths.verify_key).strip(),
    )
    # The page is not part of it.
    rows = checks.run(subject, [name for name, _ in checks.THROUGH_PORT])
    wrong = [f"{row['name']}: {row['detail']}" for row in rows if row["status"] == "fail"]
    if wrong:
        raise HostError("it did not pass verify: " + "; ".join(wrong))
    return [{key: row[key] for key in ("name", "status")} for row in rows]


# --- back ------------------------------------------------------------------------------------


def go_back(paths: Paths, state: Mapping[str, Any], why: str, tell: Tell) -> str:
    """Put back what served, wait for it and verify it. Raises HostError that says why, always."""
    state = {**state, "phase": RETURNING, "why": why}
    _reserve(paths).unlink(missing_ok=True)
    _write(paths, state)
    number = int(state["from"])
    former = entries.read(paths, number)
    entry = entries.read(paths, int(state["to"]))
    if entry["serves"] is None:
        entry["serves"] = entries.serves(paths)
    tell("going back to what served")
    since = time.monotonic()
    try:
        put_back(paths, former)
    except Exception as error:  # noqa: BLE001
        # Left open: the end of the apply tries once more, and the next boot or apply does.
        failed = _told(error)
        raise HostError(f"{why}. The way back failed: {failed.message}", failed.fix) from None
    try:
        plan = files.read_json(paths.plan)
        own_s = float((plan.get("timeouts") or {}).get("start_s") or 0)
        wait(paths, max(own_s, state["start_s"]), tell)
        verify(paths, plan)
    except Exception as error:  # noqa: BLE001
        failed = _told(error)
        _end(paths, entry, entries.FAILED, why=why, returned_to=number)
        _close(paths)
        raise HostError(
            f"{why}. The machine went back to entry {number}, and that does not serve either: "
            f"{failed.message}",
            failed.fix,
        ) from None
    ended = _end(paths, entry, entries.RETURNED, why=why, returned_to=number)
    _close(paths)
    raise HostError(
        f"{why}. The machine went back by itself to entry {number} of its history: "
        f"{entries.text(former)} serves again, {duration(time.monotonic() - since)} later",
        "mend what the reason names, or the inventory, and run `kimi-prov apply` again; "
        f"`kimi-prov history` shows entry {ended['number']}",
    )


def _told(error: Exception) -> HostError:
    if isinstance(error, HostError):
        return error
    if isinstance(error, OSError):
        return HostError.of_system(error)
    return HostError(f"{type(error).__name__}: {plain(error)}")


def put_back(paths: Paths, entry: Mapping[str, Any]) -> None:
    """Put the files of an entry in place, and make what runs follow them."""
    places = started.UnitPaths(str(paths.root))
    extra = entries.surplus(paths, entry)
    for path in extra:
        _take_away(paths, path, places)
    changed = entries.restore(paths, entry)
    gone = ["/" + str(path.relative_to(paths.root)) for path in extra]
    if any(name.startswith(layout.UNITS + "/") for name in [*changed, *gone]):
        units.systemctl("daemon-reload")
    entries.converge_enabled(paths, entry)
    plan = files.read_json(paths.plan)
    for name, command in _KERNEL.items():
        if name in changed:
            run(*command)
    _refill(paths, plan, changed)
    if paths.at(f"{layout.UNITS}/{unit_names.FIREWALL}").exists():
        if layout.FIREWALL in changed:
            units.control("reload-or-restart", unit_names.FIREWALL)
        # A plan of an earlier version may name its ports otherwise: its own table is loaded.
        if "ports" in plan["firewall"]:
            firewall.ensure(paths, plan["firewall"])
    if paths.at(f"{layout.UNITS}/{unit_names.PROXY}").exists():
        proxy.converge(paths)
    start_planned(paths)


def _take_away(paths: Paths, path: Path, places: started.UnitPaths) -> None:
    """Remove a file that an entry does not have, with the unit that it is of."""
    name = path.parent.name.removesuffix(".d") if path.name == layout.SERVE_DROP_IN else path.name
    if path.name == layout.SERVE_DROP_IN:
        serve.remove(name, places, keep=[places.file(name)])
    elif path.parent == paths.units and name != unit_names.SERVE_TEMPLATE:
        run("systemctl", "disable", "--now", "--quiet", name, timeout=300)
        run("systemctl", "reset-failed", name)
    path.unlink(missing_ok=True)


def _refill(paths: Paths, plan: Mapping[str, Any], changed: list[str]) -> None:
    """Let the units of the weights read their files again, where these changed."""
    mine = {
        unit_names.FETCH: [layout.WEIGHTS],
        **{name: [layout.WEIGHTS, layout.STAGE] for name in _FILLS},
    }
    for name, reads in mine.items():
        unit = f"{layout.UNITS}/{name}"
        if paths.at(unit).exists() and any(one in changed for one in (unit, *reads)):
            units.systemctl("restart", "--no-block", name)
    mount = f"{layout.UNITS}/{unit_names.RAM_MOUNT}"
    if mount in changed and (plan.get("ram_disk") or {}).get("enabled"):
        units.systemctl("reload-or-restart", unit_names.RAM_MOUNT)


def boot(paths: Paths) -> str:
    """Put the files of what served back before the engines start, where a switch was cut."""
    state = read(paths)
    if not state:
        return "no switch was cut"
    _reserve(paths).unlink(missing_ok=True)
    former = entries.read(paths, int(state["from"]))
    if not entries.kept(paths, former):
        _close(paths)
        return f"{_AT_BOOT}, but entry {state['from']} has no files any more: what is there stays"
    wanted = entries.serves(paths)
    extra = entries.surplus(paths, former)
    for path in extra:
        path.unlink(missing_ok=True)
        if path.name == layout.SERVE_DROP_IN:
            with contextlib.suppress(OSError):
                path.parent.rmdir()
    changed = entries.restore(paths, former)
    units.systemctl("daemon-reload")
    entries.converge_enabled(paths, former)
    # These come up before this unit can run.
    early = {
        unit_names.FIREWALL: layout.FIREWALL,
        unit_names.RAM_MOUNT: f"{layout.UNITS}/{unit_names.RAM_MOUNT}",
    }
    for name, reads in early.items():
        if reads in changed:
            run("systemctl", "try-reload-or-restart", "--no-block", name)
    # This boot's own jobs were made before these were enabled.
    if former["enabled"]:
        run("systemctl", "start", "--no-block", *former["enabled"])
    entry = entries.read(paths, int(state["to"]))
    if entry:
        more = {"serves": wanted, "returned_to": former["number"]}
        _end(paths, entry, entries.RETURNED, why=_AT_BOOT, **more)
    _close(paths)
    return _back_at_boot(former)


def _back_at_boot(former: Mapping[str, Any]) -> str:
    return f"{_AT_BOOT}: {entries.text(former)} starts again, entry {former['number']}"


# --- end -------------------------------------------------------------------------------------


def end(paths: Paths, request: Mapping[str, Any]) -> dict[str, Any]:
    """Note what an apply left, where it is `done`, or go back where it failed before the switch.

    Releases the lock of `run` at last. `told`: what became of a switch that was left open.
    """
    try:
        found = _noted(paths, request)
    finally:
        # Whatever could not be noted: the next one has the lock.
        released = apply_lock.release(str(request["run"]))
    return {**found, **released}


def _noted(paths: Paths, request: Mapping[str, Any]) -> dict[str, Any]:
    state = read(paths)
    told: list[str] = []
    if state and state.get("run") == request["run"]:
        told = _left_open(paths, state)
    elif not request["done"]:
        told = _ended_at_boot(paths, request)
    found: dict[str, Any] = {"entry": None}
    if request["done"] and not told and files.read_json(paths.plan):
        found = record(paths, request)
    if request["done"] and state and not told and not under_way():
        back = f"a boot would go back to entry {state['from']}"
        fix = "run `kimi-prov apply` without --tags, which ends it"
        told = [f"a switch was cut at {state['since']} and is still open: {back}; {fix}"]
    _forget_unit()
    return {**found, "told": told}


def _ended_at_boot(paths: Paths, request: Mapping[str, Any]) -> list[str]:
    """Say that a boot put back what served, in the middle of this run."""
    entry = entries.last(paths)
    if entry.get("run") != request["run"] or entry["why"] != _AT_BOOT:
        return []
    return [_back_at_boot(entries.read(paths, int(entry["returned_to"])))]


def _forget_unit() -> None:
    """Take the unit away that has switched: its journal and the history stay."""
    state = units.show(unit_names.SWITCH).get(unit_names.SWITCH, {})
    if state.get("load_state") == "loaded" and state["state"] in ("active", "failed", "inactive"):
        run("systemctl", "stop", unit_names.SWITCH)
        run("systemctl", "reset-failed", unit_names.SWITCH)


def _left_open(paths: Paths, state: Mapping[str, Any]) -> list[str]:
    if under_way():
        follow = f"journalctl -fu {unit_names.SWITCH}"
        return [f"the switch goes on by itself on the machine:  {follow}"]
    if state["phase"] != WRITING:
        start(paths)
        return ["the machine goes back to what served by itself:  journalctl -fu kimi-switch"]
    try:
        go_back(paths, state, "the apply failed before the switch", lambda _: None)
    except HostError as error:
        return [error.message]
    return []


def record(paths: Paths, request: Mapping[str, Any]) -> dict[str, Any]:
    """Note what is applied now; an entry of its own where it differs from the last one's."""
    document = applied.observe(paths)
    digest = applied.digest(document)
    # What came from a backup has no files, and says nothing of what is here.
    served = [row for row in entries.every(paths) if row["result"] == entries.DONE and row["files"]]
    entry: Mapping[str, Any] = served[-1] if served else {}
    if entry.get("decided_sha256") != digest:
        opened = entries.open_entry(paths, entries.APPLY, request)
        entry = _end(paths, entries.capture(paths, opened), entries.DONE)
    there = applied.read(paths)
    whole = {
        **document,
        "schema": applied.SCHEMA,
        "entry": entry["number"],
        "at": entries.now(),
        "by": request.get("by"),
        "inventory": request.get("inventory"),
        "kimi_prov": request.get("kimi_prov"),
    }
    moving = ("at", "by")
    if {k: v for k, v in there.items() if k not in moving} != {
        k: v for k, v in whole.items() if k not in moving
    }:
        applied.write(paths, whole)
    # A rollback asks for none to go.
    keep, state = request.get("keep"), read(paths)
    spare = [int(state[name]) for name in ("from", "to")] if state else []
    dropped = entries.prune(paths, int(keep), spare) if keep else []
    return {"entry": entry["number"], "dropped": dropped}


def _end(paths: Paths, entry: Mapping[str, Any], result: str, **more: object) -> dict[str, Any]:
    ended = {**entry, "result": result, "ended_at": entries.now(), **more}
    entries.write(paths, ended)
    return ended


def _close(paths: Paths) -> None:
    paths.switch.unlink(missing_ok=True)
    _reserve(paths).unlink(missing_ok=True)


def main(argv: list[str]) -> int:
    """Run one of the verbs; see the module's docstring."""
    paths = Paths()
    verbs = {"begin": begin, "rollback": rollback, "end": end}
    if argv[:1] == ["run"]:
        return _run(paths)
    if argv[:1] == ["boot"]:
        print(boot(paths), flush=True)
        return 0
    if argv[:1] == ["start"]:
        return answer({"ok": True, **start(paths)})
    if len(argv) == 1 and argv[0] in verbs:
        return answer({"ok": True, **verbs[argv[0]](paths, json.load(sys.stdin))})
    raise HostError("usage: switch begin|rollback|start|run|boot|end")


def _run(paths: Paths) -> int:
    with Progress(layout.SWITCH_PROGRESS, "switch") as progress:
        try:
            progress.done(switch(paths, partial(progress.say, log=True)))
        except HostError as error:
            progress.fail(HostError(error.message, error.fix))
            return 1
    return 0
