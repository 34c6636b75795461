"""What systemd knows about our units."""

from __future__ import annotations

import re
from typing import Any

from kimi_prov.on_host.system.process import EdgeError, run

SHOWN = (
    "Id", "LoadState", "ActiveState", "SubState", "Result", "MainPID", "NRestarts",
    "UnitFileState", "ActiveEnterTimestampMonotonic", "MemoryCurrent", "ExecMainStatus",
    "ControlGroup", "NeedDaemonReload",
)  # fmt: skip
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
# The line that names the cause, as Python, systemd and the kernel write it.
CAUSE = re.compile(
    r"(?:^|[\s:(])(?:[A-Za-z_.]*Error|[A-Za-z_.]*Exception|FATAL|CRITICAL|Killed|Cannot|cannot|"
    r"No such file|not found|refused|error:)"
)
# `(EngineCore pid=7) INFO 11-21 03:04:19 [core.py:185] `, as vLLM begins its lines.
STAMP = re.compile(r"^(?:\(\w+ pid=\d+\) *)?(?:[A-Z]+ \d\d-\d\d [\d:]+ (?:\[[\w./]+:\d+\] ?)*)?\s*")
NOISE = re.compile(
    r"EngineDeadError|Traceback|During handling|engine core initialization failed", re.I
)


def show(*names: str) -> dict[str, dict[str, Any]]:
    """State of each unit by name; one that does not exist has load_state `not-found`."""
    done = run("systemctl", "show", "--property=" + ",".join(SHOWN), "--", *names)
    found = {}
    for block in done.stdout.strip().split("\n\n"):
        pairs = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" in pairs:
            found[pairs["Id"]] = _typed(pairs)
    return found


def _typed(pairs: dict[str, str]) -> dict[str, Any]:
    def number(name: str) -> int | None:
        text = pairs.get(name, "")
        return int(text) if text.isdigit() and int(text) < 2**63 else None

    return {
        "load_state": pairs.get("LoadState", ""),
        "state": pairs.get("ActiveState", ""),
        "sub_state": pairs.get("SubState", ""),
        "result": pairs.get("Result", ""),
        "enabled": pairs.get("UnitFileState", "").startswith("enabled"),
        "stale": pairs.get("NeedDaemonReload") == "yes",
        "main_pid": number("MainPID") or 0,
        "restarts": number("NRestarts") or 0,
        "exit_status": number("ExecMainStatus"),
        "memory_bytes": number("MemoryCurrent"),
        "active_since_monotonic_us": number("ActiveEnterTimestampMonotonic") or 0,
        "cgroup": pairs.get("ControlGroup", ""),
    }


def settle(name: str, *, check: bool = False) -> bool:
    """Make systemd read the unit's file again where it changed, and enable it; True if it did."""
    unit = show(name).get(name, {})
    if unit.get("enabled") and not unit.get("stale"):
        return False
    if not check:
        run("systemctl", "daemon-reload")
        done = run("systemctl", "enable", name)
        if done.returncode != 0:
            raise EdgeError(f"{name} cannot be enabled: {done.stderr.strip()}")
    return not unit.get("enabled")


def control(verb: str, name: str) -> None:
    """Start, restart or reload a unit; raises EdgeError with the cause from its journal."""
    done = run("systemctl", verb, name, timeout=120)
    if done.returncode != 0:
        raise EdgeError(f"{name} did not {verb}: {cause(journal(name, 40))}")


def journal(unit: str, lines: int = 60) -> list[str]:
    """Return the last lines of a unit's journal, plain text, oldest first."""
    done = run("journalctl", "--no-pager", "--output=cat", f"--lines={lines}", "--unit=" + unit)
    if done.returncode != 0:
        return []
    clean = (ESCAPES.sub("", line).strip() for line in done.stdout.splitlines())
    return [line for line in clean if line and not line.startswith("-- ")]


def plain(line: str) -> str:
    """Return an engine's log line without process, time and source file before it."""
    return STAMP.sub("", line)[:400]


def cause(lines: list[str]) -> str:
    """Return the line of a failed unit's journal that says why: the last that names an error."""
    at = [n for n, line in enumerate(lines) if CAUSE.search(line) and not NOISE.search(line)]
    if not at:
        return plain(lines[-1]) if lines else "nothing in the journal"
    text = plain(lines[at[-1]])
    if "validation error" in text and at[-1] + 1 < len(lines):
        text += ": " + plain(lines[at[-1] + 1])  # pydantic tells what is wrong on the next line
    return text
