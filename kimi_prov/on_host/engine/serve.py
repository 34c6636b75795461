"""`serve-ensure` brings the engine's units to the plan, judging by what runs, not by what changed.

Each unit's configuration carries a stamp of its content in the environment variable KIMI_STAMP. A
process with another stamp is restarted; so an apply that was killed between writing a unit and
restarting it is made good by the next one.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Dict, List

from kimi_prov.on_host.system.process import answer, run, serve_unit

STAMP = "KIMI_STAMP"
UNITS = Path("/etc/systemd/system")
_DROP_IN = re.compile(r"kimi-serve@(\d+)\.service\.d")
_PROPERTIES = "Id,ActiveState,SubState,Job,MainPID,ControlPID,UnitFileState,NeedDaemonReload"


def main(argv: List[str]) -> int:
    """Read {INDEX: STAMP} from standard input; `--check` only says what would be done.

    Starts do not wait for readiness. The answer is {"changed", "started", "restarted", "removed"}.
    """
    wanted = {serve_unit(int(index)): stamp for index, stamp in json.load(sys.stdin).items()}
    return answer(ensure(wanted, UNITS, check="--check" in argv))


def ensure(wanted: Dict[str, str], units: Path, *, check: bool) -> Dict[str, Any]:
    """Start, restart and remove units until exactly those in `wanted` run with their stamps."""
    gone = [unit for unit in installed(units) if unit not in wanted]
    states = show([*wanted, *gone])
    verdicts = {
        unit: verdict(states.get(unit, {}), stamp_of(states.get(unit, {})), stamp)
        for unit, stamp in wanted.items()
    }
    enabled = [unit for unit in wanted if states.get(unit, {}).get("UnitFileState") != "enabled"]
    started = [unit for unit, word in verdicts.items() if word == "start"]
    restarted = [unit for unit, word in verdicts.items() if word == "restart"]
    if not check:
        for unit in gone:
            remove(unit, units)
        if gone or any(state.get("NeedDaemonReload") == "yes" for state in states.values()):
            _systemctl("daemon-reload")
        if started:
            run("systemctl", "reset-failed", *started)
        _systemctl("enable", "--quiet", *enabled)
        _systemctl("start", "--no-block", *started)
        _systemctl("restart", "--no-block", *restarted)
    return {
        "changed": bool(started or restarted or gone or enabled),
        "started": started,
        "restarted": restarted,
        "removed": gone,
    }


def verdict(state: Dict[str, str], running: str, stamp: str) -> str:
    """Judge one unit: `start`, `restart` or `leave`, from systemd's words and the stamp it has.

    A unit whose start is queued or that waits to be started again is left: it has read nothing
    yet, and takes the new configuration by itself.
    """
    if state.get("Job", "0") not in ("", "0") and state.get("ActiveState") == "inactive":
        return "leave"
    if state.get("ActiveState") not in ("active", "activating", "reloading"):
        return "start"
    waits = state.get("SubState") in ("auto-restart", "auto-restart-queued")
    return "leave" if waits or running == stamp else "restart"


def installed(units: Path) -> List[str]:
    """List the instances that have a drop-in of ours."""
    found = (_DROP_IN.fullmatch(path.name) for path in units.glob("kimi-serve@*.service.d"))
    return sorted(serve_unit(int(match.group(1))) for match in found if match)


def show(units: List[str]) -> Dict[str, Dict[str, str]]:
    """Ask systemd for the state of each unit, by name."""
    if not units:
        return {}
    text = run("systemctl", "show", f"--property={_PROPERTIES}", "--", *units).stdout
    blocks = [dict(line.partition("=")[::2] for line in b.splitlines()) for b in text.split("\n\n")]
    return {block["Id"]: block for block in blocks if block.get("Id")}


def stamp_of(state: Dict[str, str]) -> str:
    """Read the stamp that a unit's process was started with; empty where there is none."""
    pid = state.get("MainPID", "0")
    pid = state.get("ControlPID", "0") if pid == "0" else pid
    try:
        variables = Path(f"/proc/{int(pid)}/environ").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return ""
    prefix = f"{STAMP}=".encode()
    return next((v[len(prefix) :].decode() for v in variables if v.startswith(prefix)), "")


def remove(unit: str, units: Path) -> None:
    """Stop and forget an instance that is no longer planned."""
    run("systemctl", "disable", "--quiet", unit)
    run("systemctl", "stop", unit, timeout=300)
    run("systemctl", "reset-failed", unit)
    shutil.rmtree(str(units / f"{unit}.d"), ignore_errors=True)


def _systemctl(verb: str, *arguments: str) -> None:
    if verb != "daemon-reload" and not [word for word in arguments if not word.startswith("-")]:
        return
    arguments = (verb, *arguments)
    done = run("systemctl", *arguments, timeout=120)
    if done.returncode != 0:
        answer({"error": f"systemctl {' '.join(arguments)}: {done.stderr.strip()}"})
        sys.exit(1)
