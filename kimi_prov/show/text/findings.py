"""Findings as text: title and id, what was found, what is needed, and the fix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.show.text.lines import wrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_MARKS = {"blocker": "BLOCKER", "warning": "warning", "info": "info", "pass": "ok"}
_COLUMN = len("needs:")


def format_findings(rows: Iterable[Mapping[str, Any]]) -> str:
    """Write findings as plans and reports have them, in 80 columns."""
    lines: list[str] = []
    for row in rows:
        lines += wrap(f"{_MARKS[row['severity']]}: {row['title']} [{row['id']}]", "", "  ")
        for label, text in _list_parts(row, "needed"):
            if text or label != "fix":
                lines += wrap(f"{label}: {text}", "  ", " " * len(f"  {label}: "))
    return "\n".join(lines)


def format_wrapped(row: Mapping[str, Any]) -> str:
    """Write one finding as messages of a command have it, in 80 columns."""
    lines = wrap(f"{row['severity']}: {row['title']} ({row['id']})", "", "  ")
    for label, text in _list_parts(row, "needs"):
        if text:
            lines += wrap(f"{label + ':':<{_COLUMN}} {text}", "  ", " " * (_COLUMN + 3))
    return "\n".join(lines)


def format_reason(row: Mapping[str, Any]) -> list[str]:
    """Write one finding as the reason of a failure, each part on a line, however long."""
    parts = [f"  {label}: {text}" for label, text in _list_parts(row, "needs") if text]
    return [f"  why: {row.get('title')} ({row.get('id')})", *parts]


def _list_parts(row: Mapping[str, Any], needs: str) -> Iterator[tuple[str, Any]]:
    """Label what was found, what is needed and the fix. `needs`: the label of the second."""
    for label, key in (("found", "observed"), (needs, "required"), ("fix", "fix")):
        yield label, row.get(key)
