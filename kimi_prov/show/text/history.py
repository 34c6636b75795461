"""The history of a machine as text."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kimi_prov.contract.durations import format_duration
from kimi_prov.show.text.formats import describe_engine
from kimi_prov.show.text.lines import format_entry, format_hosts

if TYPE_CHECKING:
    from kimi_prov.contract.documents.history import (
        GatewayOfEntry,
        History,
        HistoryEntry,
        HistoryOfHost,
        ServedByEntry,
    )

_RESULTS = {
    None: "under way",
    "done": "done",
    "failed": "FAILED",
    "returned": "WENT BACK",
    "interrupted": "INTERRUPTED",
}
_KINDS = {"apply": "apply", "rollback": "rollback", "found": "found in place", "tune": "tune"}
_SERVES = {
    "former": "the former version serves",
    "new": "the new version serves",
    "both": "some instances are of the former version",
    "none": "no engine runs",
}


def format_text(document: History) -> str:
    """Write the history document: for each host its entries, oldest first."""
    return format_hosts(document, _format_host)


def format_newest(document: History) -> str:
    """Write for each host only the newest entry."""
    return format_hosts(document, partial(_format_host, first=-1))


def _format_host(host: HistoryOfHost, *, first: int = 0) -> list[str]:
    lines: list[str] = []
    for row in (host.get("entries") or [])[first:]:
        lines += _format_row(row, current=row["number"] == host.get("current"))
    state = host.get("switch")
    if state:
        how = "under way" if state["under_way"] else "CUT: the next apply takes it over"
        serves = _SERVES.get(state["serves"], state["serves"])
        lines += format_entry(
            "switch", f"to entry {state['entry']}, {how} ({state['phase']}); meanwhile {serves}"
        )
    return lines


def _format_row(row: HistoryEntry, *, current: bool) -> list[str]:
    by = row.get("by")
    who = f" by {by.get('user')}@{by.get('control_host')}" if by else ""
    kind = _KINDS.get(row["kind"], row["kind"])
    kind += f" to {row['restores']}" if row.get("restores") else ""
    result = str(_RESULTS.get(row["result"], row["result"]))
    result += f" to {row['returned_to']}" if row.get("returned_to") else ""
    now = ", in place now" if current else ""
    kept = "" if row["restorable"] else ", not kept"
    mark = f"{row['number']}{' *' if current else ''}"
    lines = format_entry(mark, f"{row['started_at']} {kind}{who}: {result}{now}{kept}")
    serves, gateway, reason = row.get("serves"), row.get("gateway"), row.get("why")
    lines += format_entry("  serves", _describe_served(serves)) if serves else []
    lines += format_entry("  sends to", _describe_targets(gateway)) if gateway else []
    lines += (
        format_entry("  speed", _describe_speed(row))
        if row.get("speed") or row.get("speed_before")
        else []
    )
    away = row.get("seconds_without_service")
    lines += format_entry("  without service", format_duration(away)) if away is not None else []
    lines += format_entry("  why", reason) if reason else []
    if row.get("inventory"):
        lines += format_entry("  from", f"{row['inventory']}, kimi-prov {row['kimi_prov']}")
    return lines


def _describe_targets(gateway: GatewayOfEntry) -> str:
    at = f", by {gateway['address']}" if gateway["address"] else ""
    return f"{', '.join(gateway['hosts'])}{at}"


def _describe_served(found: ServedByEntry) -> str:
    form = f" ({found['format']})" if found["format"] else ""
    engine = describe_engine({**found, "name": found["engine"]})
    return f"{found['model']}{form} {found['revision']} by {engine}, context {found['context']}"


def _describe_speed(row: HistoryEntry) -> str:
    now, before = row.get("speed"), row.get("speed_before")
    told = f"{now['decode_tok_s']:.1f} tok/s" if now else "not measured"
    return told + (f", {before['decode_tok_s']:.1f} before" if before else "")
