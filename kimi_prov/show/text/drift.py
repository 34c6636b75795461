"""The drift document as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kimi_prov.show.text.host_lines import entry, head, stand_ins

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHOWN = 20
_WIDTH = 14
_LONGEST = 100
_PLACES = {
    "disk": "the disk itself",
    "memory": "memory",
    "page cache": "the disk through the page cache (pages in use were not dropped)",
}


def text(document: Mapping[str, Any]) -> str:
    """Write the document: for each host what differs, and what would be planned otherwise."""
    lines: list[str] = []
    for name, host in document["hosts"].items():
        lines += head(name, host["detail"])
        lines += _applied(host)
        for row in host["drift"]:
            lines += ["", *_row(row)]
        for row in host["unseen"]:
            lines += ["", *entry("not seen", f"{row['what']}: {row['why']}", _WIDTH)]
            lines += entry("  fix", row["fix"], _WIDTH) if row.get("fix") else []
        lines += _otherwise(host)
        lines += [*stand_ins(host, _WIDTH), ""]
    return "\n".join(lines).rstrip() + "\n"


def _applied(host: Mapping[str, Any]) -> list[str]:
    applied = host.get("applied")
    if not applied:
        return []
    by = applied.get("by") or {}
    who = f" by {by['user']} on {by['control_host']}" if by.get("user") else ""
    told = f"{applied['at']}{who}, kimi-prov {applied['kimi_prov']}"
    return [*entry("applied", told, _WIDTH), *entry("weights", _read(host), _WIDTH)]


def _read(host: Mapping[str, Any]) -> str:
    if not host["weights_read"]:
        return "not read again (--weights)"
    read = [f"{path} from {_PLACES[place]}" for path, place in host["weights_read_from"].items()]
    return f"every byte was read again{': ' if read else ''}{', '.join(read)}"


def _row(row: Mapping[str, Any]) -> list[str]:
    since = f"{row['since']} ({row['since_from']})" if row["since"] else None
    rows = {
        "  on": row["subject"],
        "  applied": row["expected"],
        "  now": row["observed"],
        "  since": since,
        "  by": row["by"],
        "  fix": row["fix"],
    }
    lines = entry(row["id"].partition(".")[2], row["title"], _WIDTH)
    for label, told in rows.items():
        # What somebody is to paste is not broken within a word.
        lines += entry(label, told, _WIDTH, whole=True) if told else []
    return lines


def _otherwise(host: Mapping[str, Any]) -> list[str]:
    """Tell what `apply` would decide otherwise: no drift, and set apart from it."""
    rows, unknown = host["would_change"], host["would_change_unknown"]
    if rows is None:
        told = f"what `apply` would do today is not known: {unknown}" if unknown else ""
        return ["", *entry("today", told, _WIDTH)] if told else []
    if not rows:
        return ["", *entry("today", "`apply` would plan the same", _WIDTH)]
    lines = ["", *entry("today", "`apply` would plan otherwise (no drift):", _WIDTH)]
    for row in rows[:_SHOWN]:
        change = f"{_value(row['applied'])} -> {_value(row['planned'])}"
        lines += entry("", f"{row['key']}: {change}", _WIDTH)
    if len(rows) > _SHOWN:
        lines += entry("", f"and {len(rows) - _SHOWN} more: --format json", _WIDTH)
    return lines


def _value(value: object) -> str:
    written = json.dumps(value, ensure_ascii=False)
    return written if len(written) <= _LONGEST else f"{written[:_LONGEST]}..."
