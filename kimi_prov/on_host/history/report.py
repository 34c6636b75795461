"""`history`: what was applied to this machine, how it ended, and what can be restored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.history import applied, entries, open_switch
from kimi_prov.on_host.system.envelope import answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.history import HistoryEntry, HistoryOfHost, OpenSwitch

_TOLD = (
    "number", "kind", "restores", "started_at", "ended_at", "by", "inventory", "kimi_prov",
    "result", "why", "returned_to", "serves", "gateway", "speed", "speed_before",
    "seconds_without_service",
)  # fmt: skip


def collect(paths: Paths) -> HistoryOfHost:
    """Return the history document of this host; entries oldest first."""
    state = open_switch.read(paths)
    current = applied.read(paths).get("entry")
    rows = entries.read_all(paths)
    for row in rows:
        _require_form(paths, row)
    return {
        "ok": True,
        "detail": f"{len(rows)} entries" if rows else "nothing was applied by this version yet",
        "current": current,
        "switch": _describe_switch(paths, state) if state else None,
        "entries": [_describe_entry(paths, row, state) for row in rows],
    }


def _require_form(paths: Paths, row: Mapping[str, object]) -> None:
    """Raise HostError, with the file, for an entry that no version of ours wrote."""
    try:
        entries.from_other_machine(row)
    except ValueError as error:
        found = row.get("number")
        folder = entries.find_folder(paths, found) if isinstance(found, int) else paths.history
        raise HostError(
            f"{folder}: an entry of the history is damaged: {error}",
            f"look at it:  grep -L '\"started_at\"' {paths.history}/*/{entries.ENTRY}",
        ) from error


def _describe_switch(paths: Paths, state: Mapping[str, Any]) -> OpenSwitch:
    return {
        "entry": state["to"],
        "from": state["from"],
        "phase": state["phase"],
        "since": state["since"],
        "under_way": open_switch.is_under_way(),
        "serves": open_switch.find_serving(paths, state),
    }


def _describe_entry(paths: Paths, row: Mapping[str, Any], state: Mapping[str, Any]) -> HistoryEntry:
    return {
        "number": row["number"],
        "kind": row["kind"],
        "restores": row.get("restores"),
        "started_at": row["started_at"],
        "ended_at": row.get("ended_at"),
        "by": row.get("by"),
        "inventory": row.get("inventory"),
        "kimi_prov": row.get("kimi_prov"),
        "result": row.get("result") or _explain_unended(row, state),
        "why": row.get("why"),
        "returned_to": row.get("returned_to"),
        "serves": row.get("serves"),
        "gateway": row.get("gateway"),
        "speed": row.get("speed"),
        "speed_before": row.get("speed_before"),
        "seconds_without_service": row.get("seconds_without_service"),
        "restorable": entries.explain_not_restorable(paths, row) is None,
    }


def _explain_unended(
    entry: Mapping[str, Any], state: Mapping[str, Any]
) -> Literal["interrupted"] | None:
    """Return, for an entry without an end, None if it is under way, else how it was interrupted."""
    return None if state.get("to") == entry["number"] else "interrupted"


def main(argv: list[str]) -> int:
    """`history`: print one JSON object."""
    del argv
    return answer(collect(Paths()))
