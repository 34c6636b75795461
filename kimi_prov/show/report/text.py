"""A check document as text for a terminal of 80 columns.

Each of several machines gets a short block; a single machine gets all details.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kimi_prov.contract.sizes import format_bytes
from kimi_prov.show.report import measured, plots
from kimi_prov.show.report.assumptions import collect_assumptions
from kimi_prov.show.report.capacity import compute_capacity
from kimi_prov.show.report.comparison import build_table, describe_machine
from kimi_prov.show.report.cost_text import (
    describe_assumptions,
    describe_costs,
    describe_costs_briefly,
    describe_use,
    format_prices,
)
from kimi_prov.show.report.findings import (
    describe_remediation_cost,
    filter_severity,
    list_blockers,
    list_to_settle,
    list_warnings,
)
from kimi_prov.show.report.memory_bars import build_bars
from kimi_prov.show.report.ranking import (
    PACE,
    RENTED,
    SHORT_PACE,
    WORDS,
    build_ranking,
    describe_load,
    describe_planned,
    describe_waiting,
    explain_columns,
    explain_n,
    get_answer,
    sort_targets,
)
from kimi_prov.show.report.reading import describe_reading
from kimi_prov.show.report.verdict import (
    STATUS,
    describe_engine,
    describe_verdict,
    format_title,
    get_status,
)
from kimi_prov.show.text.findings import format_findings
from kimi_prov.show.text.formats import (
    UNKNOWN,
    clean,
    format_duration_range,
    format_short_money,
    read_span,
)
from kimi_prov.show.text.lines import WIDTH, wrap
from kimi_prov.show.text.tables import align_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.contract.documents.check import Check
    from kimi_prov.contract.documents.check import CheckedTarget as Target
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.ranges import Range
    from kimi_prov.show.report.memory_bars import Bar
    from kimi_prov.show.report.plots import Table
    from kimi_prov.show.text.formats import Cell

_BAR = 40
_LABEL = 42
_MIN_FIRST_COLUMN = 12
_NAME = 17
# Columns: rank, name, pace; three of money, three of speed.
_COLUMNS = "{:>2} {:<17} {:<10}" + " {:>8} {:>8} {:>8}" + " {:>6} {:>6} {:>6}"
_LACKS = {"yes": "lacks", "by hand": "POSSIBLE BY HAND", "no": "in the way"}
_FILL = {"weights": "#", "cache": "=", "overhead": "+", "ramdisk": "%", "free": "."}


def format_check(document: Check, *, details: bool = True) -> str:
    """Write the answer first, then each target and assumptions, blockers first if nothing serves.

    Without `details` several machines are only compared.
    """
    targets = document["targets"]
    details = details or len(targets) == 1
    lines = [*wrap(format_title(targets)), ""]
    for target in targets:
        read = describe_reading(target)
        lines += [*wrap(read, "", "  "), ""] if read else []
    lines += wrap(get_answer(document))
    lines += wrap(clean(document["answer"].get("decision") or ""))
    if document["load"]:
        lines += wrap(f"Asked for: {describe_load(document['load'])}.", "", "  ")
    lines += ["", *_format_ranking(document)]
    obstacles = [
        *_format_blockers(targets, details=details),
        *_format_to_settle(targets, details=details),
    ]
    costs = _format_costs(document, details=details)
    serves = any(row["serves"] for row in document["answer"]["ranking"])
    lines += [*costs, *obstacles] if serves else [*obstacles, *costs]
    if len(targets) == 1:
        lines += _format_heading(clean(targets[0]["name"]))
        return _join_lines([*lines, *_format_target(targets[0]), *_format_assumptions(targets)])
    for number, target in enumerate(sort_targets(document), 1):
        lines += ["", *_format_block(number, target)] if details else []
    lines += _format_heading("Assumptions")
    lines += wrap(describe_assumptions(targets))
    more = "with that target alone, or --format html"
    lines += wrap(f"All of a machine: kimi-prov check {'' if details else '--details, or '}{more}.")
    return _join_lines(lines)


def _format_blockers(targets: Sequence[Target], *, details: bool) -> list[str]:
    """Write what is in the way; without details each in a sentence."""
    blocked = list_blockers(targets)
    lines = _format_heading("What is in the way") if blocked else []
    for names, row in blocked:
        if not details:
            lines += wrap(f"- {names}: {clean(row['title'])}. Fix: {clean(row['fix'])}.", "", "  ")
            continue
        lines += wrap(f"{names}:")
        lines.append(format_findings([_clean_row(row)]))
        lines += wrap(f"costs: {describe_remediation_cost(row)}", "  ", "         ")
    return lines


def _format_to_settle(targets: Sequence[Target], *, details: bool) -> list[str]:
    settle = list_to_settle(targets)
    lines = _format_heading("To settle before apply") if settle else []
    for whom, row in settle:
        whose = "" if len(whom) == len(targets) else f" [{', '.join(whom)}]"
        fix = f": {clean(row['fix'])}{whose}" if details else ""
        lines += wrap(f"- {clean(row['title'])}{fix}", "", "  ")
    return lines


def _join_lines(lines: Sequence[str]) -> str:
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


def _format_ranking(document: Check) -> list[str]:
    """Write the machines as a table, each with what it lacks on the line below."""
    found = build_ranking(document, format_short_money)
    money = [place for place, kind in enumerate(found.kinds) if kind == "money"]
    speeds = [place for place, kind in enumerate(found.kinds) if kind == "speed"]
    many = describe_planned(document["targets"])
    span_of = found.heads[money[1]].removeprefix("Over ")
    # The column of N has no room for a large number: the notes have it.
    heads = ("$/hour", span_of[:8], "$/M out", "alone", "each", "all")
    lines = [
        f"{'decode, tokens/s':>80}",
        _COLUMNS.format("", "machine", "pace", *heads),
    ]
    for row in found.rows:
        cells = [_format_cell(row.cells[place]) for place in (*money, *speeds)]
        name, pace = _shorten(row.name, _NAME), SHORT_PACE[row.pace]
        lines.append(_COLUMNS.format(row.number, name, pace, *cells))
        extra = [row.name] if name != row.name else []
        extra += [f"machines: {row.cells[0].text}"] if found.kinds[0] == "count" else []
        extra += ["RECOMMENDED"] if row.recommended else []
        extra += [row.words] if " for one; " in row.words else []
        each = row.cells[speeds[1]].text
        extra += [f"each of {many}: {each}"] if " (" in each else []
        extra += [f"{_LACKS[row.serves]}: {row.lacks}"] if row.lacks != "nothing" else []
        lines += wrap("; ".join(extra), "   ", "   ") if extra else []
        for way in row.ways:
            lines += wrap(f"-> {way}", "   ", "      ")
    notes = "* best of its column among those that are fast enough and carry the load. " * (
        len(found.rows) > 1
    )
    notes += f"{RENTED} at the usual rent of such GPUs. " * found.rented
    notes += explain_n(document["targets"]) + explain_columns(document)
    use = describe_use(document["targets"])
    notes += (
        f"$/M out: a million output tokens and their input, at {use}. "
        f"alone: one request; each: of {many} at once; all: {many} together."
    )
    lines += ["", *wrap(notes)]
    return [
        *lines,
        *(line for word, plain in WORDS for line in wrap(f"{word}: {plain}.", "", "  ")),
    ]


def _format_cell(cell: Cell) -> str:
    text = cell.text.partition(" (")[0].replace(UNKNOWN, "-")
    return f"*{text}" if cell.best else text


def _format_costs(document: Check, *, details: bool) -> list[str]:
    by_use = [plots.build_cost_table(document)] if details else []
    # With details each machine's power stands in its own table.
    power = [] if details else [plots.build_power_table(document)]
    tables = [found for found in (*by_use, plots.build_load_table(document), *power) if found.rows]
    lines = _format_heading("Cost")
    for found in tables:
        lines += [*wrap(f"{found.caption}:"), *_format_grid(found), ""]
    breaks = plots.describe_break_evens(document) if details else []
    for text in (*breaks, *plots.describe_missing_costs(document)):
        lines += wrap(text)
    return lines


def _format_grid(found: Table) -> list[str]:
    """Write a table in columns; a long name gets a line of its own."""
    rows = (found.head, *found.rows)
    widths = [max(len(row[place]) for row in rows) for place in range(1, len(found.head))]
    # Long figures make the table wider than the page, never its first column narrower than a name.
    first = max(WIDTH - sum(width + 2 for width in widths), _MIN_FIRST_COLUMN)
    cells = [(_shorten(clean(row[0]), first), *row[1:]) for row in rows]
    return align_columns(cells, range(1, len(found.head)), [first, *widths])


def _shorten(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 2]}.."


def _format_block(number: int, target: Target) -> list[str]:
    """Write one of several machines shortly."""
    speed = target["plan"]["throughput"]
    first = [
        format_duration_range(read_span(cast("Range", speed.get(key) or {})))
        for key in ("single_ttft_s", "ttft_s")
    ]
    many = f"{speed['concurrency']:,}"
    few = describe_waiting(target)
    decode = [read_span(speed[key]) for key in ("single_tok_s", "decode_tok_s", "aggregate_tok_s")]
    rows = [
        ("", describe_verdict(target)),
        ("machine", describe_machine(target)),
        ("engine", describe_engine(target)),
        ("decode", f"{decode[0]} alone, {decode[1]} each of {many}{few}, {decode[2]} together"),
        ("prefill", str(read_span(speed["prefill_tok_s"]))),
        ("first token", f"{first[0]} alone, {first[1]} with {many} at once{few}"),
        ("memory", "; ".join(map(_describe_memory, build_bars(target)))),
        ("price", format_prices(target)),
        ("cost", describe_costs_briefly(target)),
        *(("warning", f"{row['title']}: {row['observed']}") for row in list_warnings(target)),
    ]
    lines = wrap(f"{number}. {clean(target['name'])}: {_describe_state(target)}", "", "  ")
    for label, text in rows:
        lines += wrap(clean(text), f"  {label:<12}" if label else "  ", " " * (14 if label else 2))
    return lines


def _describe_state(target: Target) -> str:
    """Return the verdict in a word, and the pace of a machine that serves."""
    word = STATUS[get_status(target)].upper()
    return word if get_status(target) == "blocked" else f"{word}, {PACE[target['pace']].lower()}"


def _describe_memory(bar: Bar) -> str:
    if bar.needed > bar.total:
        return (
            f"{bar.label} {format_bytes(bar.total)}, {format_bytes(bar.needed - bar.total)} TOO "
            "MUCH"
        )
    return f"{bar.label} {format_bytes(bar.needed)} of {format_bytes(bar.total)}"


def _format_target(target: Target) -> list[str]:
    """Write the only machine with all details."""
    lines = [
        *wrap(_describe_state(target)),
        *wrap(describe_verdict(target), "  ", "  "),
        "",
    ]
    figures = build_table([target])[4:]
    # A number of requests may be long.
    room = max(_LABEL, *(len(label) + 2 for label, _ in figures))
    for label, cells in figures:
        lines += wrap(cells[0].text, f"{label:<{room}}", " " * room)
    bars = _format_bars(build_bars(target))
    lines += ["", *bars] if bars else []
    points = compute_capacity(target)
    if points:
        line = ", ".join(f"{number:,} of {context:,}" for context, number in points)
        lines += ["", *wrap(f"The cache holds as many requests of so many tokens: {line}.")]
    if target["curve"]:
        line = "; ".join(
            f"{row['concurrency']}: {read_span(row['decode_tok_s'])}" for row in target["curve"]
        )
        lines += ["", *wrap(f"Decode of each request, tokens/s, by requests at once: {line}.")]
    said = measured.describe_measurements(target)
    if said:
        lines += ["", *wrap(f"{said}.")]
    lines += ["", *wrap(" ".join(describe_costs(target)))]
    shown = filter_severity(target, "warning")
    if shown:
        lines += ["", format_findings([_clean_row(row) for row in shown])]
    notes = filter_severity(target, "info")
    if notes:
        lines.append("")
    for row in notes:
        line = f"info: {clean(row['title'])}: {clean(row['observed'])} [{row['id']}]"
        lines += wrap(line, "", "  ")
    return [*lines, "", f"{len(filter_severity(target, 'pass'))} requirement(s) met"]


def _format_assumptions(targets: Sequence[Target]) -> list[str]:
    lines = _format_heading("Assumptions")
    for _, row in collect_assumptions(targets):
        lines += wrap(f"{row['what']}: {row['value']}", "", "  ")
        lines += wrap(f"source: {row['source'] or UNKNOWN}", "  ", "          ")
    return lines


def _format_bars(bars: Sequence[Bar]) -> list[str]:
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


def _format_heading(title: str) -> list[str]:
    return ["", title, "=" * min(len(title), WIDTH)]


def _clean_row(row: Finding) -> Finding:
    cleaned = {
        key: clean(value) if isinstance(value, (str, list)) else value for key, value in row.items()
    }
    return cast("Finding", cleaned)
