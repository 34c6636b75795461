"""A check document as text for a terminal of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract.sizes import human
from kimi_prov.report import text, view

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    blocked = view.blockers(targets)
    if blocked:
        lines += _heading("Blockers")
        for names, row in blocked:
            lines += text.wrap(f"{names}:")
            lines.append(text.findings([_cleaned(row)]))
            lines += text.wrap(f"costs: {view.mending(row)}", "  ", "         ")
    for target in targets:
        lines += _heading(view.clean(target["name"]))
        lines += _target(target)
    lines += _heading("Assumptions")
    for names, row in view.assumptions(targets):
        of = "" if names == "all" else f" [{names}]"
        lines += text.wrap(f"{row['what']}: {row['value']}{of}", "", "  ")
        lines += text.wrap(f"source: {row['source'] or view.UNKNOWN}", "  ", "          ")
    return "\n".join(lines).strip("\n") + "\n"


def _verdict(target: Mapping[str, Any]) -> list[str]:
    mark = view.STATUS[view.status(target)].upper()
    return [
        *text.wrap(f"{view.clean(target['name'])}: {mark}", "", "  "),
        *text.wrap(view.verdict(target), "  ", "  "),
        "",
    ]


def _compared(targets: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [_COLUMNS.format("", "", "context", "tokens/s", "$/M output").rstrip()]
    for target in targets:
        found = target["plan"]["throughput"]["decode_tok_s"]["expected"]
        each = target["cost"]["usd_per_million_output_tokens"]["expected"]
        cells = (
            view.clean(target["name"])[:28],
            view.STATUS[view.status(target)],
            target["plan"]["model"]["context"],
            view.figure(found),
            view.money(each),
        )
        lines.append(_COLUMNS.format(*cells))
    return lines


def _target(target: Mapping[str, Any]) -> list[str]:
    lines = []
    for label, cells in view.table([target])[3:]:
        lines += text.wrap(cells[0], f"{label:<{_LABEL}}", " " * _LABEL)
    lines += ["", *_bars(view.memory(target))]
    points = view.capacity(target)
    if points:
        said = ", ".join(f"{number:,} of {context:,}" for context, number in points)
        lines += ["", *text.wrap(f"The cache holds as many requests of so many tokens: {said}.")]
    lines += ["", *text.wrap(" ".join(view.money_sentences(target)))]
    warnings = [_cleaned(row) for row in view.of_severity(target, "warning")]
    if warnings:
        lines += ["", text.findings(warnings)]
    notes = view.of_severity(target, "info")
    if notes:
        lines.append("")
    for row in notes:
        said = f"info: {view.clean(row['title'])}: {view.clean(row['observed'])} [{row['id']}]"
        lines += text.wrap(said, "", "  ")
    lines += ["", f"{len(view.of_severity(target, 'pass'))} requirement(s) met"]
    return lines


def _bars(bars: Sequence[view.Bar]) -> list[str]:
    lines = []
    for bar in bars:
        scale = max(bar.total, bar.needed, 1)
        drawn = "".join(_FILL[part.kind] * round(_BAR * part.size / scale) for part in bar.segments)
        over = f", {human(bar.needed - bar.total)} TOO MUCH" if bar.needed > bar.total else ""
        lines += text.wrap(f"{bar.label}, {human(bar.total)}{over}", "", "  ")
        lines.append(f"  |{drawn[:_BAR]:<{_BAR}}|")
        parts = [f"{_FILL[p.kind]} {p.label} {human(p.size)}" for p in bar.segments]
        lines += text.wrap("  ".join(parts), "  ", "  ")
    return lines


def _heading(title: str) -> list[str]:
    return ["", title, "=" * min(len(title), 80)]


def _cleaned(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: view.clean(value) if isinstance(value, (str, list)) else value
        for key, value in row.items()
    }
