"""A check document as Markdown: the same sentences and tables, for a ticket or a wiki."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.sizes import format_bytes
from kimi_prov.show.report import measured, plots
from kimi_prov.show.report.assumptions import assumptions
from kimi_prov.show.report.capacity import capacity
from kimi_prov.show.report.comparison import table
from kimi_prov.show.report.cost_text import assumed, money_sentences, usage
from kimi_prov.show.report.findings import blockers, of_severity, remediation_cost, to_settle
from kimi_prov.show.report.memory_bars import memory
from kimi_prov.show.report.ranking import (
    PACE,
    RENTED,
    WORDS,
    answer_sentence,
    load_text,
    n_means,
    of_how_many,
    ranked,
    ranking,
)
from kimi_prov.show.report.verdict import STATUS, status, title, verdict
from kimi_prov.show.text.formats import UNKNOWN, clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kimi_prov.show.report.findings import Target
    from kimi_prov.show.report.memory_bars import Bar
    from kimi_prov.show.report.plots import Table
    from kimi_prov.show.text.formats import Cell

_MARKS = re.compile(r"([\\`*_{}\[\]<>|#~$])")


def check(document: Mapping[str, Any]) -> str:
    """Give the answer, blockers, speed, cost, side by side, each target, assumptions."""
    targets = document["targets"]
    ordered = ranked(document)
    lines = [f"# {safe(title(targets))}", "", *_answer(document)]
    blocked = blockers(targets)
    if blocked:
        lines += ["", "## What is in the way"]
        for names, row in blocked:
            lines += ["", *_finding(row, f"{safe(names)}: ")]
            lines.append(f"- Costs: {safe(remediation_cost(row))}")
    settle = to_settle(targets)
    if settle:
        lines += ["", "## To settle before apply", ""]
    for whom, row in settle:
        whose = "all machines" if len(whom) == len(targets) else ", ".join(whom)
        lines.append(f"- {safe(row['title'])}: {safe(row['fix'])} ({safe(whose)})")
    speeds = _tables([plots.decode_table(document), plots.front_table(document)])
    lines += ["", "## Speed", *speeds] if speeds else []
    lines += ["", "## Cost"]
    lines += _tables([plots.cost_table(document), plots.load_table(document)])
    for text in (*plots.break_even_sentences(document), *plots.without_costs(document)):
        lines += ["", safe(text)]
    heading = "Side by side" if len(targets) > 1 else "Figures"
    lines += ["", f"## {heading}", "", *_side_by_side(ordered)]
    for number, target in enumerate(ordered, 1):
        lines += ["", f"## {number}. {safe(target['name'])}", "", *_target(target)]
    lines += ["", "## Assumptions and sources", "", safe(assumed(targets)), ""]
    rows = [
        (row["what"], row["value"], names, row["source"] or UNKNOWN)
        for names, row in assumptions(targets)
    ]
    lines += table_lines(("What", "Value", "Holds for", "Source"), rows)
    return "\n".join(lines) + "\n"


def _answer(document: Mapping[str, Any]) -> list[str]:
    found = ranking(document)
    lines = [f"**{safe(answer_sentence(document))}**", ""]
    if document["load"]:
        lines += [f"Asked for: {safe(load_text(document['load']))}.", ""]
    speeds = [f"Decode, {head}, tokens/s" for head in found.speed_heads]
    plain = [head for head, _ in found.plain_heads]
    head = ("", "Machine", "Serves", "Pace", *plain, *speeds, "Lacks")
    lines += [_line(head), "|" + " --- |" * len(head)]
    for row in found.rows:
        name = safe(row.name) + (" (recommended)" if row.recommended else "")
        cells = [str(row.number), f"**{name}**" if row.recommended else name]
        cells += ["yes" if row.serves else "no", PACE[row.pace]]
        cells += [_marked(cell) for cell in row.cells]
        lines.append(_row([*cells, safe(row.lacks)]))
    notes = "Bold: best of its column among those that serve. " * (len(found.rows) > 1)
    notes += n_means(document["targets"]) + of_how_many(document)
    notes += f"A million tokens: at {usage(document['targets'])}."
    notes += f" \\{RENTED}: at the usual rent of such GPUs." * found.rented
    return [*lines, "", notes, "", *(f"- {word}: {plain}." for word, plain in WORDS)]


def _tables(tables: Sequence[Table]) -> list[str]:
    """Set what the pictures of the page show in tables."""
    lines = []
    for found in (found for found in tables if found.rows):
        lines += ["", f"{safe(found.caption)}:", "", *table_lines(found.head, found.rows)]
    return lines


def _side_by_side(targets: Sequence[Target]) -> list[str]:
    lines = table_lines(("", *(t["name"] for t in targets)), [])
    for label, cells in table(targets):
        lines.append(_row([safe(label), *map(_marked, cells)]))
    return lines


def _target(target: Target) -> list[str]:
    lines = [
        f"**{STATUS[status(target)]}. {PACE[target['pace']]}.** {safe(verdict(target))}",
        "",
        "### Memory",
        "",
    ]
    rows = [
        (bar.label if first else "", part.label, format_bytes(part.size), _of(part.size, bar))
        for bar in memory(target)
        for first, part in ((part is bar.segments[0], part) for part in bar.segments)
    ]
    lines += table_lines(("", "Use", "Size", "Share"), rows)
    over = [bar for bar in memory(target) if bar.needed > bar.total]
    lines += [
        f"\n**{safe(bar.label)} is too small by {format_bytes(bar.needed - bar.total)}.**"
        for bar in over
    ]
    said = measured.line(target)
    if said:
        lines += ["", f"{safe(said)}."]
    points = capacity(target)
    if points:
        lines += ["", "### Context against requests at once", ""]
        lines += table_lines(
            ("Tokens of context", "Requests at once"), [(f"{c:,}", f"{n:,}") for c, n in points]
        )
    lines += ["", "### Sums", "", safe(" ".join(money_sentences(target)))]
    shown = of_severity(target, "warning", "info")
    if shown:
        lines += ["", "### Warnings and remarks"]
        for row in shown:
            lines += ["", *_finding(row, f"{row['severity'].capitalize()}: ")]
    passed = of_severity(target, "pass")
    if passed:
        lines += ["", "### Requirements met", "", *(f"- {safe(row['title'])}" for row in passed)]
    return lines


def _finding(row: Mapping[str, Any], before: str) -> list[str]:
    lines = [f"**{before}{safe(row['title'])}** (`{row['id']}`)", ""]
    parts = (("Found", row["observed"]), ("Needed", row["required"]), ("Fix", row["fix"]))
    lines += [f"- {label}: {safe(value)}" for label, value in parts if value]
    return [*lines, f"- Source: {safe(row['source'])}"]


def table_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write a table of any texts."""
    lines = [_line(head), "|" + " --- |" * len(head)]
    return [*lines, *(_line(row) for row in rows)]


def _line(cells: Sequence[str]) -> str:
    return _row([safe(cell) for cell in cells])


def _row(cells: Sequence[str]) -> str:
    """Give a line of a table; its cells are safe already."""
    return "| " + " | ".join(cells) + " |"


def _marked(cell: Cell) -> str:
    return f"**{safe(cell.text)}**" if cell.best else safe(cell.text)


def _of(size: int, bar: Bar) -> str:
    return f"{size / bar.total:.0%}" if bar.total else UNKNOWN


def safe(value: object) -> str:
    """Give text that Markdown prints as it is, tables and HTML included."""
    return _MARKS.sub(r"\\\1", clean(value))
