"""`follow UNIT --progress FILE`: one JSON line with the state of one of our units.

Everything that the control machine shows comes in one call: systemd's view, the job's own progress
file when it is of this very run, and the journal's last lines once it has failed.
"""

from __future__ import annotations

import argparse
from typing import Any

from kimi_prov.on_host.system import apply_lock, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import read_json
from kimi_prov.on_host.system.process import run

_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "ExecMainStatus",
    "InvocationID",
    "Job",
    "NRestarts",
)


def main(argv: list[str]) -> int:
    """Print the line; exit 0 whatever the unit's state, which is the answer."""
    parser = argparse.ArgumentParser(prog="follow")
    parser.add_argument("unit")
    parser.add_argument("--progress")
    parser.add_argument("--journal", type=int, default=60, help="lines when it has failed")
    options = parser.parse_args(argv)
    apply_lock.renew()
    unit = read_properties(options.unit)
    found: dict[str, Any] = {
        "unit": unit,
        "progress": read_progress(options.progress, unit.get("InvocationID", "")),
        "journal": [],
    }
    if unit.get("ActiveState") == "failed":
        found["journal"] = read_journal(unit.get("InvocationID", ""), options.journal)
    return answer(found)


def read_properties(unit: str) -> dict[str, str]:
    """Return the unit's properties as systemd prints them."""
    return next(iter(units.read_properties([unit], _PROPERTIES).values()), {})


def read_progress(path: str | None, invocation: str) -> dict[str, Any] | None:
    """Return the progress, unless it was left by an earlier run of the unit."""
    # The conversion's file belongs to the service's user, who could replace it by anything.
    document = read_json(path, links=False) if path else {}
    if not document:
        return None
    return document if document.get("invocation") in (None, invocation) else None


def read_journal(invocation: str, lines: int) -> list[str]:
    """Return the last lines of one run, its own and systemd's about it, without columns."""
    fields = [f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}"]
    command = ["journalctl", "--no-pager", "--output=cat", f"--lines={lines}", *fields]
    return run(*command, timeout=30).stdout.splitlines() if invocation else []
