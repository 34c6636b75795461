"""`history`: what was applied to this machine, how it ended, and what could be put back."""

from __future__ import annotations

from typing import Any

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.history import applied, entries, open_switch
from kimi_prov.on_host.system.envelope import answer

_TOLD = (
    "number", "kind", "restores", "started_at", "ended_at", "by", "inventory", "kimi_prov",
    "result", "why", "returned_to", "serves", "gateway", "speed", "speed_before",
    "seconds_without_service",
)  # fmt: skip


def collect(paths: Paths) -> dict[str, Any]:
    """Return the history document of this host; entries oldest first."""
    state = open_switch.read(paths)
    current = applied.read(paths).get("entry")
    rows = entries.read_all(paths)
    return {
        "ok": True,
        "detail": f"{len(rows)} entries" if rows else "nothing was applied by this version yet",
        "current": current,
        "switch": {
            "entry": state["to"],
            "from": state["from"],
            "phase": state["phase"],
            "since": state["since"],
            "under_way": open_switch.is_under_way(),
            "serves": open_switch.find_serving(paths, state),
        }
        if state
        else None,
        "entries": [
            {
                **{key: row.get(key) for key in _TOLD},
                "result": row["result"] or _explain_unended(row, state),
                "restorable": entries.explain_not_restorable(paths, row) is None,
            }
            for row in rows
        ],
    }


def _explain_unended(entry: dict[str, Any], state: dict[str, Any]) -> str | None:
    """Say of an entry without an end whether it is under way (None) or was cut."""
    return None if state.get("to") == entry["number"] else entries.INTERRUPTED


def main(argv: list[str]) -> int:
    """`history`: one JSON object."""
    del argv
    return answer(collect(Paths()))
