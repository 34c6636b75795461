"""Findings as text: title and id, observed, required, and the fix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.show.text.lines import wrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_MARKS = {"blocker": "BLOCKER", "warning": "warning", "info": "info", "pass": "ok"}
_COLUMN = len("needs:")


def format_findings(rows: Iterable[Mapping[str, Any]]) -> str:
    """Write findings for plans and reports, in 80 columns."""
    lines: list[str] = []
    for row in rows:
        lines += wrap(f"{_MARKS[row['severity']]}: {row['title']} [{row['id']}]", "", "  ")
        for label, text in _list_parts(row, "needed"):
            if text or label not in ("fix", "cause"):
                lines += wrap(f"{label}: {text}", "  ", " " * len(f"  {label}: "))
    return "\n".join(lines)


def format_wrapped(row: Mapping[str, Any]) -> str:
    """Write one finding for a command's messages, in 80 columns."""
    lines = wrap(f"{row['severity']}: {row['title']} ({row['id']})", "", "  ")
    for label, text in _list_parts(row, "needs"):
        if text:
            lines += wrap(f"{label + ':':<{_COLUMN}} {text}", "  ", " " * (_COLUMN + 3))
    return "\n".join(lines)


def format_reason(row: Mapping[str, Any]) -> list[str]:
    """Write one finding as the reason of a failure, each part on one line of any length."""
    parts = [f"  {label}: {text}" for label, text in _list_parts(row, "needs") if text]
    return [f"  why: {row.get('title')} ({row.get('id')})", *parts]


def _list_parts(row: Mapping[str, Any], needs: str) -> Iterator[tuple[str, Any]]:
    """Yield observed, required and fix with labels. `needs`: the label of the second."""
    # Only a finding of a log has a cause beside its title.
    keys = (("found", "observed"), ("cause", "cause"), (needs, "required"), ("fix", "fix"))
    for label, key in keys:
        yield label, row.get(key)
