"""A check document as Markdown: the same sentences and tables, for a ticket or a wiki."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kimi_prov.contract.sizes import format_bytes
from kimi_prov.show.report import measured, plots
from kimi_prov.show.report.assumptions import collect_assumptions
from kimi_prov.show.report.capacity import compute_capacity
from kimi_prov.show.report.comparison import build_table
from kimi_prov.show.report.cost_text import describe_assumptions, describe_costs, describe_use
from kimi_prov.show.report.findings import (
    describe_remediation_cost,
    filter_severity,
    list_blockers,
    list_to_settle,
)
from kimi_prov.show.report.memory_bars import build_bars
from kimi_prov.show.report.ranking import (
    PACE,
    RENTED,
    WORDS,
    build_ranking,
    describe_load,
    explain_columns,
    explain_n,
    get_answer,
    list_meeting,
    sort_targets,
)
from kimi_prov.show.report.reading import describe_reading
from kimi_prov.show.report.verdict import STATUS, describe_verdict, format_title, get_status
from kimi_prov.show.text.formats import UNKNOWN, clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kimi_prov.contract.documents.check import Check
    from kimi_prov.contract.documents.check import CheckedTarget as Target
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.show.report.memory_bars import Bar
    from kimi_prov.show.report.plots import Table
    from kimi_prov.show.text.formats import Cell

_MARKS = re.compile(r"([\\`*_{}\[\]<>|#~$])")


def format_check(document: Check) -> str:
    """Give the answer, blockers, speed, cost, side by side, each target, assumptions."""
    targets = document["targets"]
    ordered = sort_targets(document)
    lines = [f"# {escape(format_title(targets))}", ""]
    for target in targets:
        read = describe_reading(target)
        lines += [escape(read), ""] if read else []
    lines += _format_answer(document)
    obstacles = _format_obstacles(targets)
    costs = _format_speeds_and_costs(document)
    serves = any(row["serves"] for row in document["answer"]["ranking"])
    lines += [*costs, *obstacles] if serves else [*obstacles, *costs]
    heading = "Side by side" if len(targets) > 1 else "Figures"
    lines += ["", f"## {heading}", "", *_format_side_by_side(ordered, list_meeting(document))]
    for number, target in enumerate(ordered, 1):
        lines += [
            "",
            f"## {number}. {escape(target['name'])}",
            "",
            *_format_target(target),
        ]
    lines += [
        "",
        "## Assumptions and sources",
        "",
        escape(describe_assumptions(targets)),
        "",
    ]
    rows = [
        (row["what"], row["value"], names, row["source"] or UNKNOWN)
        for names, row in collect_assumptions(targets)
    ]
    lines += format_table(("What", "Value", "Holds for", "Source"), rows)
    return "\n".join(lines) + "\n"


def _format_obstacles(targets: Sequence[Target]) -> list[str]:
    """Write what is in the way, and what is to be settled before `apply`."""
    lines: list[str] = []
    blocked = list_blockers(targets)
    if blocked:
        lines += ["", "## What is in the way"]
        for names, row in blocked:
            lines += ["", *_format_finding(row, f"{escape(names)}: ")]
            lines.append(f"- Costs: {escape(describe_remediation_cost(row))}")
    settle = list_to_settle(targets)
    if settle:
        lines += ["", "## To settle before apply", ""]
    for whom, row in settle:
        whose = "all machines" if len(whom) == len(targets) else ", ".join(whom)
        lines.append(f"- {escape(row['title'])}: {escape(row['fix'])} ({escape(whose)})")
    return lines


def _format_speeds_and_costs(document: Check) -> list[str]:
    lines: list[str] = []
    speeds = _format_tables([plots.build_decode_table(document), plots.build_front_table(document)])
    lines += ["", "## Speed", *speeds] if speeds else []
    lines += ["", "## Cost"]
    lines += _format_tables([plots.build_cost_table(document), plots.build_load_table(document)])
    for text in (*plots.describe_break_evens(document), *plots.describe_missing_costs(document)):
        lines += ["", escape(text)]
    return lines


def _format_answer(document: Check) -> list[str]:
    found = build_ranking(document)
    lines = [f"**{escape(get_answer(document))}**", ""]
    if document["answer"].get("decision"):
        lines += [escape(document["answer"]["decision"]), ""]
    if document["load"]:
        lines += [f"Asked for: {escape(describe_load(document['load']))}.", ""]
    speeds = [f"Decode, {head}, tokens/s" for head in found.speed_heads]
    plain = [head for head, _ in found.plain_heads]
    head = ("", "Machine", "Serves", "Pace", *plain, *speeds, "Lacks")
    lines += [_format_line(head), "|" + " --- |" * len(head)]
    for row in found.rows:
        name = escape(row.name) + (" (recommended)" if row.recommended else "")
        cells = [str(row.number), f"**{name}**" if row.recommended else name]
        cells += [row.serves, row.words]
        cells += [_format_cell(cell) for cell in row.cells]
        lines.append(_join_cells([*cells, escape(row.lacks)]))
    for row in found.rows:
        lines += [f"\n{escape(row.name)}: {escape(way)}." for way in row.ways]
    lines += [""] * any(row.ways for row in found.rows)
    notes = "Bold: best of its column among those that are fast enough and carry the load. " * (
        len(found.rows) > 1
    )
    notes += explain_n(document["targets"]) + explain_columns(document)
    notes += f"A million tokens: at {describe_use(document['targets'])}."
    notes += f" \\{RENTED}: at the usual rent of such GPUs." * found.rented
    return [*lines, "", notes, "", *(f"- {word}: {plain}." for word, plain in WORDS)]


def _format_tables(tables: Sequence[Table]) -> list[str]:
    """Set what the charts of the page show in tables."""
    lines = []
    for found in (found for found in tables if found.rows):
        lines += [
            "",
            f"{escape(found.caption)}:",
            "",
            *format_table(found.head, found.rows),
        ]
    return lines


def _format_side_by_side(targets: Sequence[Target], meeting: Sequence[str]) -> list[str]:
    lines = format_table(("", *(t["name"] for t in targets)), [])
    for label, cells in build_table(targets, meeting):
        lines.append(_join_cells([escape(label), *map(_format_cell, cells)]))
    return lines


def _format_target(target: Target) -> list[str]:
    word = f"{STATUS[get_status(target)]}. {PACE[target['pace']]}."
    lines = [
        f"**{word}** {escape(describe_verdict(target))}",
        "",
        "### Memory",
        "",
    ]
    rows = [
        (
            bar.label if first else "",
            part.label,
            format_bytes(part.size),
            _format_part(part.size, bar),
        )
        for bar in build_bars(target)
        for first, part in ((part is bar.segments[0], part) for part in bar.segments)
    ]
    lines += format_table(("", "Use", "Size", "Share"), rows)
    over = [bar for bar in build_bars(target) if bar.needed > bar.total]
    lines += [
        f"\n**{escape(bar.label)} is too small by {format_bytes(bar.needed - bar.total)}.**"
        for bar in over
    ]
    said = measured.describe_measurements(target)
    if said:
        lines += ["", f"{escape(said)}."]
    points = compute_capacity(target)
    if points:
        lines += ["", "### Context against requests at once", ""]
        lines += format_table(
            ("Tokens of context", "Requests at once"), [(f"{c:,}", f"{n:,}") for c, n in points]
        )
    lines += ["", "### Sums", "", escape(" ".join(describe_costs(target)))]
    shown = filter_severity(target, "warning", "info")
    if shown:
        lines += ["", "### Warnings and remarks"]
        for row in shown:
            lines += ["", *_format_finding(row, f"{row['severity'].capitalize()}: ")]
    passed = filter_severity(target, "pass")
    if passed:
        lines += [
            "",
            "### Requirements met",
            "",
            *(f"- {escape(row['title'])}" for row in passed),
        ]
    return lines


def _format_finding(row: Finding, before: str) -> list[str]:
    lines = [f"**{before}{escape(row['title'])}** (`{row['id']}`)", ""]
    parts = (("Found", row["observed"]), ("Needed", row["required"]), ("Fix", row["fix"]))
    lines += [f"- {label}: {escape(value)}" for label, value in parts if value]
    return [*lines, f"- Source: {escape(row['source'])}"]


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write a table of any texts."""
    lines = [_format_line(head), "|" + " --- |" * len(head)]
    return [*lines, *(_format_line(row) for row in rows)]


def _format_line(cells: Sequence[str]) -> str:
    return _join_cells([escape(cell) for cell in cells])


def _join_cells(cells: Sequence[str]) -> str:
    """Return a line of a table; its cells are escaped already."""
    return "| " + " | ".join(cells) + " |"


def _format_cell(cell: Cell) -> str:
    return f"**{escape(cell.text)}**" if cell.best else escape(cell.text)


def _format_part(size: int, bar: Bar) -> str:
    return f"{size / bar.total:.0%}" if bar.total else UNKNOWN


def escape(value: object) -> str:
    """Escape a text for Markdown, its tables and HTML."""
    return _MARKS.sub(r"\\\1", clean(value))
