"""`serve-ensure` writes the engine's units and makes exactly the planned instances run.

The running processes are compared with the plan, whatever this run changed. Each unit has a digest
of what its process depends on in the environment variable KIMI_STAMP. A process with another digest
is restarted where the unit that it was started with differs in meaning. So the next apply completes
one that was killed between writing a unit and restarting, and a process that an older version
started continues.

Decides: when an instance restarts.
Applied by: roles/serve.
Held by: tests/component/on_host/engine/test_serve.py,
  tests/unit/on_host/engine/test_serve_verdict.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.contract import paths, unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.unit_comparison import (
    Form,
    is_gated,
    is_supervised,
    list_restart_reasons,
    parse_form,
    read_digest,
)
from kimi_prov.on_host.endpoint import haproxy, stop_state
from kimi_prov.on_host.engine import engine_sleep
from kimi_prov.on_host.system import files, machine_key, plans, started
from kimi_prov.on_host.system import units as systemd
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import make_directory, read_text, write_atomic
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from kimi_prov.contract.documents.answers import ServeAnswer, WrittenFile
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.on_host.system.kept_state import State

# The subcommand that starts an engine behind the machine key.
_LAUNCH = "kimi_prov/on_host/engine/launch.py"
# The subcommand that starts it in a group; a program that has it has the other too.
_SUPERVISOR = "kimi_prov/on_host/group/supervisor.py"
_DROP_IN = re.compile(re.escape(unit_names.SERVE_PREFIX) + r"(\d+)\.service\.d")
_PROPERTIES = (
    "ActiveState", "SubState", "Job", "MainPID", "ControlPID", "UnitFileState", "NeedDaemonReload",
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Read {"template": TEXT, "drop_ins": {UNIT: TEXT}} from standard input.

    `template` is the file that the units share; a host has one kind of them: instances of its own
    engines, or its part of a group's engine.

    `--check` only reports what would be done. Starts do not wait for readiness. The answer is
    {"changed", "started", "restarted", "removed", "reasons", "written", "made"}: `reasons` has
    sentences by unit, `written` rows of {"path", "before", "after"}, `made` the path of the
    machine key where there was none. While a switch is open, units are only written: it stops and
    starts the engines itself.
    """
    wanted = json.load(sys.stdin)
    check = "--check" in argv
    hold = os.path.exists(paths.SWITCH) and not check
    places = started.UnitPaths()
    state = paths.Paths(places.root)
    rest = stop_state.read(state)
    if not check and not hold:
        allow_start(places)
    done = ensure(wanted["template"], wanted["drop_ins"], places, check=check, hold=hold)
    if not check and not hold and engine_sleep.is_engine_asleep(rest):
        wake_engines(state, rest)
    return answer(done)


def wake_engines(state: paths.Paths, rest: State) -> None:
    """Wake the engines of a machine that was asleep by `rest`, its stop state.

    If other programs hold the GPUs it sleeps on. Raises HostError.
    """
    plan = plans.read_machine_plan(state.plan)
    try:
        engine_sleep.wake_or_stop(state, plan, rest, partial(print, file=sys.stderr))
    except engine_sleep.GpusHeldError:
        # A request would wait for an engine that sleeps.
        stop_state.write(state, rest)
        raise
    _start_units([], [unit_names.get_engine_unit(row) for row in plan["instances"]], [])


def allow_start(places: started.UnitPaths) -> None:
    """Remove the stop state of a machine that was stopped or asleep, so that engines start."""
    stop_state.clear(paths.Paths(places.root))


def read_planned(plan: MachinePlan, places: started.UnitPaths) -> tuple[str, dict[str, str]]:
    """Return the input of `ensure` for the units of the present plan."""
    names = [unit_names.get_engine_unit(row) for row in plan["instances"]]
    return read_text(places.file(names[0])), {
        name: read_text(places.drop_in(name)) for name in names
    }


def _write_files(rows: list[WrittenFile]) -> None:
    for row in rows:
        path = Path(row["path"])
        make_directory(path.parent, 0o755)
        write_atomic(path, row["after"], 0o644)


def _start_units(enabled: list[str], begun: list[str], restarted: list[str]) -> None:
    """Enable, start and restart units, and wait for none of them."""
    if begun or restarted:
        # A requested start does not count to the unit's limit of failed starts.
        run("systemctl", "reset-failed", *begun, *restarted)
    _run_systemctl("enable", "--quiet", *enabled)
    _run_systemctl("start", "--no-block", *begun)
    _run_systemctl("restart", "--no-block", *restarted)


def ensure(
    template: str,
    drop_ins: dict[str, str],
    places: started.UnitPaths,
    *,
    check: bool,
    hold: bool = False,
) -> ServeAnswer:
    """Write units; start, restart and remove until exactly the units in `drop_ins` run.

    `hold`: write and enable them, and leave running processes alone.
    """
    gone = [unit for unit in list_installed(places.units) if unit not in drop_ins and not hold]
    states = read_states([*drop_ins, *gone])
    wanted = {unit: started.join_unit(template, text) for unit, text in drop_ins.items()}
    forms = {unit: parse_form(text) for unit, text in wanted.items()}
    running = {unit: read_running_digest(states.get(unit, {}), places) for unit in wanted}
    had = {unit: started.find_unit_text(running[unit], unit, places) for unit in wanted}
    reasons = {
        unit: list_restart_reasons(running[unit], _parse_form(had[unit]), forms[unit])
        for unit in wanted
    }
    verdicts = {
        unit: "leave" if hold else decide_action(states.get(unit, {}), differs=bool(reasons[unit]))
        for unit in wanted
    }
    enabled = [unit for unit in wanted if states.get(unit, {}).get("UnitFileState") != "enabled"]
    begun = [unit for unit, word in verdicts.items() if word == "start"]
    restarted = [unit for unit, word in verdicts.items() if word == "restart"]
    shared = {places.file(unit): template for unit in wanted}
    own = {places.drop_in(unit): text for unit, text in drop_ins.items()}
    written = _list_differing({**shared, **own})
    if not check and any(is_gated(found) for found in forms.values()):
        _check_gate(places, supervised=any(is_supervised(found) for found in forms.values()))
    made = machine_key.ensure(places.machine_key, check=check)
    if not check:
        for unit, text in wanted.items():
            before = had[unit]
            if before is not None:
                started.store_unit(running[unit], before, places)
            if verdicts[unit] != "leave":
                started.store_unit(read_digest(text), text, places)
        for unit in gone:
            remove(unit, places, keep=list(shared))
        _write_files(written)
        stale = any(state.get("NeedDaemonReload") == "yes" for state in states.values())
        if gone or written or stale:
            _run_systemctl("daemon-reload")
        _start_units(enabled, begun, restarted)
        stamps = {**running, **{unit: read_digest(wanted[unit]) for unit in [*begun, *restarted]}}
        started.remove_all_but(list(stamps.values()), places)
    return {
        "changed": bool(begun or restarted or gone or enabled or written or made),
        "started": begun,
        "restarted": restarted,
        "removed": gone,
        "reasons": {unit: reasons[unit] for unit in restarted},
        "written": written,
        "made": [str(places.machine_key)] if made else [],
    }


def decide_action(state: dict[str, str], *, differs: bool) -> str:
    """Decide on one unit: `start`, `restart` or `leave`, from its systemd properties.

    `differs`: its process was started with another unit. A unit whose start is queued or that waits
    for a restart is left alone: it has read nothing yet, and will read the new configuration.
    """
    if state.get("Job", "0") not in ("", "0") and state.get("ActiveState") == "inactive":
        return "leave"
    if state.get("ActiveState") not in ("active", "activating", "reloading"):
        return "start"
    waits = state.get("SubState") in ("auto-restart", "auto-restart-queued")
    return "leave" if waits or not differs else "restart"


def _check_gate(places: started.UnitPaths, *, supervised: bool) -> None:
    """Raise HostError where the program or the proxy is too old for the new unit."""
    fix = "run  kimi-prov apply  without --tags and --skip-tags"
    needed = _SUPERVISOR if supervised else _LAUNCH
    names = [needed]
    # Without any program the unit itself reports it.
    with contextlib.suppress(OSError), zipfile.ZipFile(str(places.program)) as program:
        names = program.namelist()
    if needed not in names:
        raise HostError(f"{places.program} is of an older version than this unit", fix)
    config = read_text(places.proxy_config)
    # A proxy for metrics alone sends no requests to engines.
    if f"backend {haproxy.BACKEND}" in config and paths.MACHINE_KEY not in config:
        raise HostError(f"{places.proxy_config} is of an older version: it sends no key", fix)


def list_installed(units: Path) -> list[str]:
    """List the units of engines that have one of our drop-ins."""
    found = (_DROP_IN.fullmatch(path.name) for path in units.glob(f"{unit_names.ALL_SERVE}.d"))
    serving = sorted(unit_names.build_serve_name(int(match.group(1))) for match in found if match)
    return [*serving, *([unit_names.RANK] if (units / f"{unit_names.RANK}.d").is_dir() else [])]


def read_states(units: list[str]) -> dict[str, dict[str, str]]:
    """Read the state of each unit from systemd, by name."""
    return systemd.read_properties(units, _PROPERTIES)


def read_running_digest(state: dict[str, str], places: started.UnitPaths) -> str:
    """Read the digest with which a unit's process was started; empty where there is none."""
    return started.read_running_digest(started.get_pid(state), places) or ""


def remove(unit: str, places: started.UnitPaths, keep: list[Path]) -> None:
    """Stop and remove a unit that is no longer planned, and its file unless it is shared."""
    run("systemctl", "disable", "--quiet", unit)
    run("systemctl", "stop", unit, timeout=300)
    run("systemctl", "reset-failed", unit)
    shutil.rmtree(str(places.units / f"{unit}.d"), ignore_errors=True)
    if places.file(unit) not in keep:
        files.remove(str(places.file(unit)))


def _parse_form(text: str | None) -> Form | None:
    return None if text is None else parse_form(text)


def _list_differing(files: dict[Path, str]) -> list[WrittenFile]:
    """Return the files whose content differs from the planned one."""
    there = {path: read_text(path) for path in files}
    return [
        {"path": str(path), "before": there[path], "after": text}
        for path, text in files.items()
        if there[path] != text or not _is_readable_by_all(path)
    ]


def _is_readable_by_all(path: Path) -> bool:
    state = path.stat()
    ours = os.geteuid() != 0 or (state.st_uid, state.st_gid) == (0, 0)
    return ours and state.st_mode & 0o7777 == 0o644


def _run_systemctl(verb: str, *arguments: str) -> None:
    if verb != "daemon-reload" and not [word for word in arguments if not word.startswith("-")]:
        return
    arguments = (verb, *arguments)
    done = run("systemctl", *arguments, timeout=120)
    if done.returncode != 0:
        raise HostError(f"systemctl {' '.join(arguments)}: {done.stderr.strip()}")
