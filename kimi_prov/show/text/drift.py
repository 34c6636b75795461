"""The drift document as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kimi_prov.show.text.lines import format_entry, format_hosts, format_stand_ins

if TYPE_CHECKING:
    from kimi_prov.contract.documents.drift import Difference, Drift, DriftOfHost

_MAX_ROWS = 20
_WIDTH = 14
_MAX_VALUE_LENGTH = 100
_PLACES = {
    "disk": "the disk itself",
    "memory": "memory",
    "page cache": "the disk through the page cache (pages in use were not dropped)",
}


def format_text(document: Drift) -> str:
    """Write the document: for each host the differences, and the changes of today's plan."""
    return format_hosts(document, _format_host)


def _format_host(host: DriftOfHost) -> list[str]:
    lines = _format_applied(host)
    for row in host["drift"]:
        lines += ["", *_format_difference(row)]
    for part in host["unseen"]:
        lines += ["", *format_entry("not seen", f"{part['what']}: {part['why']}", _WIDTH)]
        fix = part.get("fix")
        lines += format_entry("  fix", fix, _WIDTH) if fix else []
    return [*lines, *_format_plan_changes(host), *format_stand_ins(host, _WIDTH)]


def _format_applied(host: DriftOfHost) -> list[str]:
    applied = host.get("applied")
    if not applied:
        return []
    by = applied.get("by") or {}
    who = f" by {by['user']} on {by.get('control_host')}" if by.get("user") else ""
    told = f"{applied['at']}{who}, kimi-prov {applied['kimi_prov']}"
    return [
        *format_entry("applied", told, _WIDTH),
        *format_entry("weights", _describe_reading(host), _WIDTH),
    ]


def _describe_reading(host: DriftOfHost) -> str:
    if not host["weights_read"]:
        return "not read again (--weights)"
    places = host.get("weights_read_from") or {}
    read = [f"{path} from {_PLACES.get(place, place)}" for path, place in places.items()]
    return f"every byte was read again{': ' if read else ''}{', '.join(read)}"


def _format_difference(row: Difference) -> list[str]:
    since = f"{row['since']} ({row['since_from']})" if row["since"] else None
    rows = {
        "  on": row["subject"],
        "  applied": row["expected"],
        "  now": row["observed"],
        "  since": since,
        "  by": row["by"],
        "  fix": row["fix"],
        "  lines": f"{row['fix']} --check --diff" if _is_file_of_apply(row) else None,
    }
    lines = format_entry(row["id"].partition(".")[2], row["title"], _WIDTH)
    for label, told in rows.items():
        # Commands to paste are not broken within a word.
        lines += format_entry(label, told, _WIDTH, whole=True) if told else []
    return lines


def _is_file_of_apply(row: Difference) -> bool:
    """Whether `apply` writes the file, so that its check mode shows the lines that differ."""
    return row["id"] == "drift.file" and row["fix"].startswith("kimi-prov apply ")


def _format_plan_changes(host: DriftOfHost) -> list[str]:
    """Write what `apply` would change today, which is no drift."""
    rows, unknown = host["would_change"], host["would_change_unknown"]
    if rows is None:
        told = f"what `apply` would do today is not known: {unknown}" if unknown else ""
        return ["", *format_entry("today", told, _WIDTH)] if told else []
    if not rows:
        return ["", *format_entry("today", "`apply` would plan the same", _WIDTH)]
    lines = ["", *format_entry("today", "`apply` would plan otherwise (no drift):", _WIDTH)]
    for row in rows[:_MAX_ROWS]:
        change = f"{_format_value(row['applied'])} -> {_format_value(row['planned'])}"
        lines += format_entry("", f"{row['key']}: {change}", _WIDTH)
    if len(rows) > _MAX_ROWS:
        lines += format_entry("", f"and {len(rows) - _MAX_ROWS} more: --format json", _WIDTH)
    return lines


def _format_value(value: object) -> str:
    written = json.dumps(value, ensure_ascii=False)
    return written if len(written) <= _MAX_VALUE_LENGTH else f"{written[:_MAX_VALUE_LENGTH]}..."
