"""A check document as text for a terminal of 80 columns.

Of several machines each gets a short block; a check of one alone shows everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract.sizes import format_bytes
from kimi_prov.show.report import measured, plots
from kimi_prov.show.report.assumptions import assumptions
from kimi_prov.show.report.capacity import capacity
from kimi_prov.show.report.comparison import machine, table
from kimi_prov.show.report.cost_text import assumed, money_sentences, money_short, prices, usage
from kimi_prov.show.report.findings import (
    blockers,
    of_severity,
    remediation_cost,
    to_settle,
    warnings,
)
from kimi_prov.show.report.memory_bars import memory
from kimi_prov.show.report.ranking import (
    PACE,
    RENTED,
    SHORT_PACE,
    WORDS,
    answer_sentence,
    each_of,
    load_text,
    n_means,
    of_how_many,
    ranked,
    ranking,
    waiting,
)
from kimi_prov.show.report.verdict import STATUS, engine, status, title, verdict
from kimi_prov.show.text.formats import UNKNOWN, clean, duration_range, short_money, span
from kimi_prov.show.text.terminal import findings, wrap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.show.report.findings import Target
    from kimi_prov.show.report.memory_bars import Bar
    from kimi_prov.show.report.plots import Table
    from kimi_prov.show.text.formats import Cell

_BAR = 40
_LABEL = 42
_NAME = 17
# Place, name, pace; three of money, three of speed.
_COLUMNS = "{:>2} {:<17} {:<10}" + " {:>8} {:>8} {:>8}" + " {:>6} {:>6} {:>6}"
_FILL = {"weights": "#", "cache": "=", "overhead": "+", "ramdisk": "%", "free": "."}


def check(document: Mapping[str, Any]) -> str:
    """Give the answer first, then what blocks, then each target, then what was assumed."""
    targets = document["targets"]
    lines = [*wrap(title(targets)), "", *wrap(answer_sentence(document))]
    if document["load"]:
        lines += wrap(f"Asked for: {load_text(document['load'])}.", "", "  ")
    lines += ["", *_ranked(document)]
    blocked = blockers(targets)
    if blocked:
        lines += _heading("What is in the way")
        for names, row in blocked:
            lines += wrap(f"{names}:")
            lines.append(findings([_cleaned(row)]))
            lines += wrap(f"costs: {remediation_cost(row)}", "  ", "         ")
    settle = to_settle(targets)
    if settle:
        lines += _heading("To settle before apply")
    for whom, row in settle:
        whose = "" if len(whom) == len(targets) else f" [{', '.join(whom)}]"
        lines += wrap(f"- {clean(row['title'])}: {clean(row['fix'])}{whose}", "", "  ")
    lines += _money(document)
    if len(targets) == 1:
        lines += _heading(clean(targets[0]["name"]))
        return _joined([*lines, *_whole(targets[0]), *_assumptions(targets)])
    for number, target in enumerate(ranked(document), 1):
        lines += ["", *_block(number, target)]
    lines += _heading("Assumptions")
    lines += wrap(assumed(targets))
    lines += wrap("All of a machine: kimi-prov check with that target alone, or --format html.")
    return _joined(lines)


def _joined(lines: Sequence[str]) -> str:
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


def _ranked(document: Mapping[str, Any]) -> list[str]:
    """Set the machines in a table, each with what it lacks on the line below."""
    found = ranking(document, short_money)
    money = [place for place, kind in enumerate(found.kinds) if kind == "money"]
    speeds = [place for place, kind in enumerate(found.kinds) if kind == "speed"]
    many = each_of(document["targets"])
    span_of = found.heads[money[1]].removeprefix("Over ")
    # The column of N has no room for a large number: the notes tell it.
    heads = ("$/hour", span_of[:8], "$/M out", "alone", "each", "all")
    lines = [
        f"{'decode, tokens/s':>80}",
        _COLUMNS.format("", "machine", "pace", *heads),
    ]
    for row in found.rows:
        cells = [_starred(row.cells[place]) for place in (*money, *speeds)]
        name = row.name if len(row.name) <= _NAME else f"{row.name[: _NAME - 2]}.."
        pace = SHORT_PACE[row.pace]
        lines.append(_COLUMNS.format(row.number, name, pace, *cells))
        extra = [f"machines: {row.cells[0].text}"] if found.kinds[0] == "count" else []
        extra += ["RECOMMENDED"] if row.recommended else []
        each = row.cells[speeds[1]].text
        extra += [f"each of {many}: {each}"] if " (" in each else []
        extra += (
            [f"{'lacks' if row.serves else 'in the way'}: {row.lacks}"]
            if row.lacks != "nothing"
            else []
        )
        lines += wrap("; ".join(extra), "   ", "   ") if extra else []
    notes = "* best of its column among those that serve. " * (len(found.rows) > 1)
    notes += f"{RENTED} at the usual rent of such GPUs. " * found.rented
    notes += n_means(document["targets"]) + of_how_many(document)
    notes += (
        f"$/M out: a million output tokens and their input, at {usage(document['targets'])}. "
        f"alone: one request; each: of {many} at once; all: {many} together."
    )
    lines += ["", *wrap(notes)]
    return [
        *lines,
        *(line for word, plain in WORDS for line in wrap(f"{word}: {plain}.", "", "  ")),
    ]


def _starred(cell: Cell) -> str:
    text = cell.text.partition(" (")[0].replace(UNKNOWN, "-")
    return f"*{text}" if cell.best else text


def _money(document: Mapping[str, Any]) -> list[str]:
    both = (plots.cost_table(document), plots.load_table(document))
    tables = [found for found in both if found.rows]
    lines = _heading("Cost")
    for found in tables:
        lines += [*wrap(f"{found.caption}:"), *_grid(found), ""]
    for text in (*plots.break_even_sentences(document), *plots.without_costs(document)):
        lines += wrap(text)
    return lines


def _grid(found: Table) -> list[str]:
    """Set a table in columns; a long name gets a line of its own."""
    rows = (found.head, *found.rows)
    widths = [max(len(row[place]) for row in rows) for place in range(1, len(found.head))]
    first = 80 - sum(width + 2 for width in widths)
    lines = []
    for row in rows:
        cells = "".join(f"  {text:>{width}}" for text, width in zip(row[1:], widths, strict=True))
        name = clean(row[0])
        lines.append(f"{name if len(name) <= first else name[: first - 2] + '..':<{first}}{cells}")
    return lines


def _block(number: int, target: Target) -> list[str]:
    """Describe one of several machines shortly."""
    speed = target["plan"]["throughput"]
    first = [duration_range(span(speed.get(key) or {})) for key in ("single_ttft_s", "ttft_s")]
    many = f"{speed['concurrency']:,}"
    few = waiting(target)
    decode = [span(speed[key]) for key in ("single_tok_s", "decode_tok_s", "aggregate_tok_s")]
    rows = [
        ("", verdict(target)),
        ("machine", machine(target)),
        ("engine", engine(target)),
        ("decode", f"{decode[0]} alone, {decode[1]} each of {many}{few}, {decode[2]} together"),
        ("prefill", str(span(speed["prefill_tok_s"]))),
        ("first token", f"{first[0]} alone, {first[1]} with {many} at once{few}"),
        ("memory", "; ".join(map(_shares, memory(target)))),
        ("price", prices(target)),
        ("cost", money_short(target)),
        *(("warning", f"{row['title']}: {row['observed']}") for row in warnings(target)),
    ]
    lines = wrap(f"{number}. {clean(target['name'])}: {_state(target)}", "", "  ")
    for label, text in rows:
        lines += wrap(clean(text), f"  {label:<12}" if label else "  ", " " * (14 if label else 2))
    return lines


def _state(target: Target) -> str:
    """Give the verdict in a word, and the pace of a machine that serves."""
    word = STATUS[status(target)].upper()
    return word if status(target) == "blocked" else f"{word}, {PACE[target['pace']].lower()}"


def _shares(bar: Bar) -> str:
    if bar.needed > bar.total:
        return (
            f"{bar.label} {format_bytes(bar.total)}, {format_bytes(bar.needed - bar.total)} TOO "
            "MUCH"
        )
    return f"{bar.label} {format_bytes(bar.needed)} of {format_bytes(bar.total)}"


def _whole(target: Target) -> list[str]:
    """Describe the only machine fully."""
    lines = [
        *wrap(_state(target)),
        *wrap(verdict(target), "  ", "  "),
        "",
    ]
    figures = table([target])[4:]
    # A number of requests may be long.
    room = max(_LABEL, *(len(label) + 2 for label, _ in figures))
    for label, cells in figures:
        lines += wrap(cells[0].text, f"{label:<{room}}", " " * room)
    lines += ["", *_bars(memory(target))]
    points = capacity(target)
    if points:
        line = ", ".join(f"{number:,} of {context:,}" for context, number in points)
        lines += ["", *wrap(f"The cache holds as many requests of so many tokens: {line}.")]
    if target["curve"]:
        line = "; ".join(
            f"{row['concurrency']}: {span(row['decode_tok_s'])}" for row in target["curve"]
        )
        lines += ["", *wrap(f"Decode of each request, tokens/s, by requests at once: {line}.")]
    said = measured.line(target)
    if said:
        lines += ["", *wrap(f"{said}.")]
    lines += ["", *wrap(" ".join(money_sentences(target)))]
    shown = of_severity(target, "warning")
    if shown:
        lines += ["", findings([_cleaned(row) for row in shown])]
    notes = of_severity(target, "info")
    if notes:
        lines.append("")
    for row in notes:
        line = f"info: {clean(row['title'])}: {clean(row['observed'])} [{row['id']}]"
        lines += wrap(line, "", "  ")
    return [*lines, "", f"{len(of_severity(target, 'pass'))} requirement(s) met"]


def _assumptions(targets: Sequence[Target]) -> list[str]:
    lines = _heading("Assumptions")
    for _, row in assumptions(targets):
        lines += wrap(f"{row['what']}: {row['value']}", "", "  ")
        lines += wrap(f"source: {row['source'] or UNKNOWN}", "  ", "          ")
    return lines


def _bars(bars: Sequence[Bar]) -> list[str]:
    lines = []
    for bar in bars:
        scale = max(bar.total, bar.needed, 1)
        drawn = "".join(_FILL[part.kind] * round(_BAR * part.size / scale) for part in bar.segments)
        over = (
            f", {format_bytes(bar.needed - bar.total)} TOO MUCH" if bar.needed > bar.total else ""
        )
        lines += wrap(f"{bar.label}, {format_bytes(bar.total)}{over}", "", "  ")
        lines.append(f"  |{drawn[:_BAR]:<{_BAR}}|")
        parts = [f"{_FILL[p.kind]} {p.label} {format_bytes(p.size)}" for p in bar.segments]
        lines += wrap("  ".join(parts), "  ", "  ")
    return lines


def _heading(title: str) -> list[str]:
    return ["", title, "=" * min(len(title), 80)]


def _cleaned(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: clean(value) if isinstance(value, (str, list)) else value for key, value in row.items()
    }
