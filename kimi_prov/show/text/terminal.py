"""Lines and findings for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_WIDTH = 80
_MARKS = {"blocker": "BLOCKER", "warning": "warning", "info": "info", "pass": "ok"}


def format_findings(rows: Iterable[Mapping[str, Any]]) -> str:
    """Describe findings: the title, what was found, what is needed, and the fix."""
    lines: list[str] = []
    for row in rows:
        lines += wrap(f"{_MARKS[row['severity']]}: {row['title']} [{row['id']}]", "", "  ")
        lines += wrap(f"found: {row['observed']}", "  ", "         ")
        lines += wrap(f"needed: {row['required']}", "  ", "          ")
        if row["fix"]:
            lines += wrap(f"fix: {row['fix']}", "  ", "       ")
    return "\n".join(lines)


def wrap(text: str, first: str = "", rest: str = "") -> list[str]:
    """Break a line at 80 columns; words are never cut."""
    return textwrap.wrap(
        clean_text.clean_row(text),
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
