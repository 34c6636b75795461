"""A check document as Markdown: the same sentences and tables, for a ticket or a wiki."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.sizes import human
from kimi_prov.report import measured
from kimi_prov.report.assumptions import assumptions
from kimi_prov.report.capacity import capacity
from kimi_prov.report.comparison import table
from kimi_prov.report.cost_text import money_sentences
from kimi_prov.report.findings import blockers, of_severity, remediation_cost
from kimi_prov.report.formats import UNKNOWN, clean
from kimi_prov.report.memory_bars import memory
from kimi_prov.report.verdict import STATUS, status, title, verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kimi_prov.report.memory_bars import Bar

_MARKS = re.compile(r"([\\`*_{}\[\]<>|#~$])")
# Columns that a page of a wiki still shows beside each other.
_ABREAST = 4


def check(document: Mapping[str, Any]) -> str:
    """Verdicts, side by side, blockers, each target, assumptions and sources."""
    targets = document["targets"]
    lines = [f"# {_safe(title(targets))}", "", "## Verdict", ""]
    lines += [
        f"- **{_safe(t['name'])}: {STATUS[status(t)].lower()}.** {_safe(verdict(t))}"
        for t in targets
    ]
    lines += ["", "## Side by side"]
    for start in range(0, len(targets), _ABREAST):
        lines += ["", *_side_by_side(targets[start : start + _ABREAST])]
    blocked = blockers(targets)
    if blocked:
        lines += ["", "## What blocks, and how to fix it"]
        for names, row in blocked:
            lines += ["", *_finding(row, f"{_safe(names)}: ")]
            lines.append(f"- Costs: {_safe(remediation_cost(row))}")
    for target in targets:
        lines += ["", f"## {_safe(target['name'])}", "", *_target(target)]
    lines += ["", "## Assumptions and sources", ""]
    rows = [
        (row["what"], row["value"], names, row["source"] or UNKNOWN)
        for names, row in assumptions(targets)
    ]
    lines += _table(("What", "Value", "Holds for", "Source"), rows)
    return "\n".join(lines) + "\n"


def _side_by_side(targets: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [(label, *cells) for label, cells in table(targets)]
    return _table(("", *(t["name"] for t in targets)), rows)


def _target(target: Mapping[str, Any]) -> list[str]:
    lines = [_safe(verdict(target)), "", "### Memory", ""]
    rows = [
        (bar.label if first else "", part.label, human(part.size), _of(part.size, bar))
        for bar in memory(target)
        for first, part in ((part is bar.segments[0], part) for part in bar.segments)
    ]
    lines += _table(("", "Use", "Size", "Share"), rows)
    over = [bar for bar in memory(target) if bar.needed > bar.total]
    lines += [
        f"\n**{_safe(bar.label)} is too small by {human(bar.needed - bar.total)}.**" for bar in over
    ]
    said = measured.line(target)
    if said:
        lines += ["", f"{_safe(said)}."]
    points = capacity(target)
    if points:
        lines += ["", "### Context against requests at once", ""]
        lines += _table(
            ("Tokens of context", "Requests at once"), [(f"{c:,}", f"{n:,}") for c, n in points]
        )
    lines += ["", "### Cost", "", _safe(" ".join(money_sentences(target)))]
    shown = of_severity(target, "warning", "info")
    if shown:
        lines += ["", "### Warnings and remarks"]
        for row in shown:
            lines += ["", *_finding(row, f"{row['severity'].capitalize()}: ")]
    passed = of_severity(target, "pass")
    if passed:
        lines += ["", "### Requirements met", "", *(f"- {_safe(row['title'])}" for row in passed)]
    return lines


def _finding(row: Mapping[str, Any], before: str) -> list[str]:
    lines = [f"**{before}{_safe(row['title'])}** (`{row['id']}`)", ""]
    parts = (("Found", row["observed"]), ("Needed", row["required"]), ("Fix", row["fix"]))
    lines += [f"- {label}: {_safe(value)}" for label, value in parts if value]
    return [*lines, f"- Source: {_safe(row['source'])}"]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [_line(head), "|" + " --- |" * len(head)]
    return [*lines, *(_line(row) for row in rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_safe(cell) for cell in cells) + " |"


def _of(size: int, bar: Bar) -> str:
    return f"{size / bar.total:.0%}" if bar.total else UNKNOWN


def _safe(value: object) -> str:
    """Give text that Markdown prints as it is, tables and HTML included."""
    return _MARKS.sub(r"\\\1", clean(value))
