"""A check document as text for a terminal of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract.sizes import human
from kimi_prov.report import measured
from kimi_prov.report.assumptions import assumptions
from kimi_prov.report.capacity import capacity
from kimi_prov.report.comparison import table
from kimi_prov.report.cost_text import money_sentences
from kimi_prov.report.findings import blockers, of_severity, remediation_cost
from kimi_prov.report.formats import UNKNOWN, clean, figure, money
from kimi_prov.report.memory_bars import memory
from kimi_prov.report.terminal import findings, wrap
from kimi_prov.report.verdict import STATUS, status, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.report.memory_bars import Bar

_BAR = 40
_LABEL = 42
# Name, verdict, context, speed of one request, cost of a million output tokens.
_COLUMNS = "{:<28} {:<20} {:>7} {:>9} {:>11}"
_FILL = {"weights": "#", "cache": "=", "overhead": "+", "ramdisk": "%", "free": "."}


def check(document: Mapping[str, Any]) -> str:
    """Verdicts first, then what blocks, then each target, then what was assumed."""
    targets = document["targets"]
    lines = [line for target in targets for line in _verdict(target)]
    if len(targets) > 1:
        lines += _compared(targets)
    blocked = blockers(targets)
    if blocked:
        lines += _heading("Blockers")
        for names, row in blocked:
            lines += wrap(f"{names}:")
            lines.append(findings([_cleaned(row)]))
            lines += wrap(f"costs: {remediation_cost(row)}", "  ", "         ")
    for target in targets:
        lines += _heading(clean(target["name"]))
        lines += _target(target)
    lines += _heading("Assumptions")
    for names, row in assumptions(targets):
        of = "" if names == "all" else f" [{names}]"
        lines += wrap(f"{row['what']}: {row['value']}{of}", "", "  ")
        lines += wrap(f"source: {row['source'] or UNKNOWN}", "  ", "          ")
    return "\n".join(lines).strip("\n") + "\n"


def _verdict(target: Mapping[str, Any]) -> list[str]:
    mark = STATUS[status(target)].upper()
    return [
        *wrap(f"{clean(target['name'])}: {mark}", "", "  "),
        *wrap(verdict(target), "  ", "  "),
        "",
    ]


def _compared(targets: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [_COLUMNS.format("", "", "context", "tokens/s", "$/M output").rstrip()]
    for target in targets:
        found = target["plan"]["throughput"]["decode_tok_s"]["expected"]
        each = target["cost"]["usd_per_million_output_tokens"]["expected"]
        cells = (
            clean(target["name"])[:28],
            STATUS[status(target)],
            target["plan"]["model"]["context"],
            figure(found),
            money(each),
        )
        lines.append(_COLUMNS.format(*cells))
    return lines


def _target(target: Mapping[str, Any]) -> list[str]:
    lines = []
    for label, cells in table([target])[3:]:
        lines += wrap(cells[0], f"{label:<{_LABEL}}", " " * _LABEL)
    lines += ["", *_bars(memory(target))]
    points = capacity(target)
    if points:
        line = ", ".join(f"{number:,} of {context:,}" for context, number in points)
        lines += ["", *wrap(f"The cache holds as many requests of so many tokens: {line}.")]
    said = measured.line(target)
    if said:
        lines += ["", *wrap(f"{said}.")]
    lines += ["", *wrap(" ".join(money_sentences(target)))]
    warnings = [_cleaned(row) for row in of_severity(target, "warning")]
    if warnings:
        lines += ["", findings(warnings)]
    notes = of_severity(target, "info")
    if notes:
        lines.append("")
    for row in notes:
        line = f"info: {clean(row['title'])}: {clean(row['observed'])} [{row['id']}]"
        lines += wrap(line, "", "  ")
    lines += ["", f"{len(of_severity(target, 'pass'))} requirement(s) met"]
    return lines


def _bars(bars: Sequence[Bar]) -> list[str]:
    lines = []
    for bar in bars:
        scale = max(bar.total, bar.needed, 1)
        drawn = "".join(_FILL[part.kind] * round(_BAR * part.size / scale) for part in bar.segments)
        over = f", {human(bar.needed - bar.total)} TOO MUCH" if bar.needed > bar.total else ""
        lines += wrap(f"{bar.label}, {human(bar.total)}{over}", "", "  ")
        lines.append(f"  |{drawn[:_BAR]:<{_BAR}}|")
        parts = [f"{_FILL[p.kind]} {p.label} {human(p.size)}" for p in bar.segments]
        lines += wrap("  ".join(parts), "  ", "  ")
    return lines


def _heading(title: str) -> list[str]:
    return ["", title, "=" * min(len(title), 80)]


def _cleaned(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: clean(value) if isinstance(value, (str, list)) else value for key, value in row.items()
    }
