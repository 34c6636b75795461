"""The figures of the plots: HTML draws them, Markdown and text write tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.show.report.findings import filter_severity
from kimi_prov.show.report.ranking import map_places, sort_targets
from kimi_prov.show.text.formats import clean, format_figure, format_money, format_share
from kimi_prov.sizing.curve import CHAT_TOK_S, SLOW_TOK_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kimi_prov.contract.documents.check import Check, CostByLoad
    from kimi_prov.contract.documents.check import CheckedTarget as Target


@dataclass(frozen=True)
class Point:
    """A point of a line; `low` and `high` bound y where a range is known.

    `requests`: requests at once, where no axis shows them.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    requests: int | None = None


@dataclass(frozen=True)
class Line:
    """A machine's line: `number` is its rank."""

    number: int
    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Level:
    """A horizontal line, such as a price to compare with."""

    y: float
    label: str


@dataclass(frozen=True)
class Table:
    """The same figures as text."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


# Speeds from which people can chat, and from which they wait.
PACES = tuple(
    Level(least, f"{word}: {least:g} tokens/s")
    for word, least in (("chat", CHAT_TOK_S), ("slow", SLOW_TOK_S))
)


def list_shown(document: Check) -> list[Target]:
    """Return the targets in plots, in the order of the ranking: all that serve, else all."""
    targets = sort_targets(document)
    return [t for t in targets if not filter_severity(t, "blocker")] or targets


def build_decode_lines(document: Check) -> list[Line]:
    """Return decode speed of each request, in tokens/s, against requests at once."""
    return _build_lines(
        document,
        lambda target: [
            Point(
                row["concurrency"],
                row["decode_tok_s"]["expected"],
                row["decode_tok_s"]["low"],
                row["decode_tok_s"]["high"],
            )
            for row in target["curve"]
            if row["decode_tok_s"]["expected"]
        ],
    )


def build_speed_lines(document: Check) -> list[Line]:
    """Return the speed of all requests together against that of each, in tokens/s."""
    return _build_lines(
        document,
        lambda target: [
            Point(
                row["decode_tok_s"]["expected"],
                row["aggregate_tok_s"]["expected"],
                requests=row["concurrency"],
            )
            for row in target["curve"]
            if row["decode_tok_s"]["expected"] and row["aggregate_tok_s"]["expected"]
        ],
    )


def find_front(lines: Sequence[Line]) -> list[tuple[Line, Point]]:
    """Return the points that no other exceeds in both speeds (the Pareto front), by falling x.

    Of equal points the first machine's is kept.
    """
    points = [(line, point) for line in lines for point in line.points]
    best: list[tuple[Line, Point]] = []
    for line, point in sorted(points, key=lambda pair: (-pair[1].x, -pair[1].y, pair[0].number)):
        if not best or point.y > best[-1][1].y:
            best.append((line, point))
    return best


def build_cost_lines(document: Check) -> list[Line]:
    """Return dollars for a million output tokens against the share of hours in use."""
    return _build_lines(
        document,
        lambda target: [
            Point(row["utilisation"], row["usd_per_million_output_tokens"])
            for row in target["cost"]["by_use"]
            if row["usd_per_million_output_tokens"]
        ],
    )


def find_api_level(document: Check) -> Level | None:
    """Return the price of the model's own API for a million output tokens with their input."""
    for target in list_shown(document):
        for row in target["cost"]["break_even"][:1]:
            asked = row["api_usd_per_million_output_tokens"]
            if asked:
                return Level(asked, f"API of {clean(row['api'])}, {format_money(asked)}")
    return None


def find_break_evens(document: Check) -> dict[int, Point]:
    """Return by machine's number the use from which it is cheaper than the API."""
    found = {}
    for target in list_shown(document):
        rows = target["cost"]["break_even"][:1]
        if rows and rows[0]["utilisation"] and rows[0]["utilisation"] <= 1:
            asked = rows[0]["api_usd_per_million_output_tokens"]
            if asked is not None:
                found[map_places(document)[target["name"]]] = Point(rows[0]["utilisation"], asked)
    return found


def describe_break_evens(document: Check) -> list[str]:
    """Write for each machine with a price from which use it is cheaper than the API."""
    asked, found, rows = (
        find_api_level(document),
        find_break_evens(document),
        build_cost_lines(document),
    )
    if asked is None or not rows:
        return []
    # Either all machines in the plot are blocked, or none is.
    blocked = any(filter_severity(target, "blocker") for target in list_shown(document))
    start = "Once the blockers are fixed, cheaper" if blocked else "Cheaper"
    wins = [
        f"{row.name} from {format_share(found[row.number].x)} use"
        for row in rows
        if row.number in found
    ]
    never = [row.name for row in rows if row.number not in found]
    said = [f"{start} than the {asked.label}: {', '.join(wins)}."] if wins else []
    if never:
        said.append(
            f"Not cheaper than the {asked.label}, at any use, with the planned requests at once: "
            f"{', '.join(never)}. For other numbers see the costs by requests at once."
        )
    return said


def describe_missing_costs(document: Check) -> list[str]:
    """Write which machines have no costs in the plot, and why."""
    targets = [(clean(target["name"]), target["cost"]) for target in list_shown(document)]
    unpriced = [(name, cost) for name, cost in targets if cost["usd_per_hour"] is None]
    unknown = [
        name
        for name, cost in targets
        if cost["usd_per_hour"] is not None
        and cost["usd_per_million_output_tokens"]["expected"] is None
    ]
    said = []
    if unpriced:
        names = ", ".join(name for name, _ in unpriced)
        rented = any(cost["usual_rent_usd_per_hour"] is not None for _, cost in unpriced)
        rent = (
            "; the answer's costs are by the usual rent of such GPUs, where one is known" * rented
        )
        said.append(f"Not shown here, for lack of a price: {names}{rent}.")
    if unknown:
        said.append(f"Not shown here, for lack of an estimate of speed: {', '.join(unknown)}.")
    return said


def build_decode_table(document: Check) -> Table:
    """Return decode speed against requests at once, the range in brackets."""
    return _build_table(
        "Decode of each request, tokens/s, by requests at once",
        "Requests at once",
        build_decode_lines(document),
        lambda x: f"{x:,.0f}",
        lambda point: (
            format_figure(point.y)
            + (
                f" ({format_figure(point.low)} to {format_figure(point.high)})"
                if point.low and point.high
                else ""
            )
        ),
    )


def build_cost_table(document: Check) -> Table:
    """Return the cost of a million output tokens by use, and the API's price."""
    found = _build_table(
        "Dollars for a million output tokens and their input, by use of the machine, with the "
        "planned requests at once",
        "Use",
        build_cost_lines(document),
        format_share,
        lambda point: format_money(point.y),
    )
    asked = find_api_level(document)
    if asked is None or not found.rows:
        return found
    row = (asked.label.partition(",")[0], *[format_money(asked.y)] * (len(found.head) - 1))
    return Table(found.caption, found.head, (*found.rows, row))


def build_power_table(document: Check) -> Table:
    """Return each machine's power; one whose parts are not all known is left out."""
    rows = []
    for target in sort_targets(document):
        power = target["cost"].get("power")
        if power is not None:
            kw = (power["nameplate_kw"], power["likely_kw"], power["order_kw"])
            texts = [f"{value:.1f} ({value * power['cooling']:.1f})" for value in kw]
            rows.append((clean(target["name"]), *texts))
    caption = "Power of one machine, kW without (with) cooling; to order: from the facility"
    return Table(caption, ("Machine", "nameplate", "likely", "to order"), tuple(rows))


def build_load_table(document: Check) -> Table:
    """Return the cost of a million output tokens by requests at once, and which is cheaper."""
    targets = [
        target
        for target in list_shown(document)
        if any(
            row["usd_per_million_output_tokens"]["expected"] for row in target["cost"]["by_load"]
        )
    ]
    steps = sorted({row["concurrency"] for t in targets for row in t["cost"]["by_load"]})
    rows = []
    for target in targets:
        by_step = {row["concurrency"]: row for row in target["cost"]["by_load"]}
        cells = [_format_load_cost(by_step.get(step)) for step in steps]
        rows.append((clean(target["name"]), *cells))
    asked = find_api_level(document)
    wins = f"; wins: cheaper than the {asked.label}" if asked else ""
    return Table(
        "Dollars for a million output tokens and their input, by requests at once, at the stated "
        f"use{wins}",
        ("Requests at once", *(f"{step:,}" for step in steps)),
        tuple(rows),
    )


def build_front_table(document: Check) -> Table:
    """Return the Pareto front: each point, from the fastest for one to the fastest for all."""
    return Table(
        "Decode of each request against decode of all, tokens/s: the Pareto front, which no other "
        "machine or number of requests beats in both",
        ("Machine", "Requests at once", "Each request", "All together"),
        tuple(
            (line.name, f"{point.requests:,}", format_figure(point.x), format_figure(point.y))
            for line, point in find_front(build_speed_lines(document))
        ),
    )


def _format_load_cost(row: CostByLoad | None) -> str:
    if row is None or row["usd_per_million_output_tokens"]["expected"] is None:
        return "-"
    cost = format_money(row["usd_per_million_output_tokens"]["expected"])
    return f"{cost} wins" if row["cheaper"] == "self-hosting" else cost


def _build_lines(document: Check, points: Callable[[Target], list[Point]]) -> list[Line]:
    places = map_places(document)
    found = [
        Line(places[t["name"]], clean(t["name"]), tuple(points(t))) for t in list_shown(document)
    ]
    return [line for line in found if line.points]


def _build_table(
    caption: str,
    corner: str,
    lines: Sequence[Line],
    x: Callable[[float], str],
    y: Callable[[Point], str],
) -> Table:
    steps = sorted({point.x for line in lines for point in line.points})
    rows = []
    for line in lines:
        by_step = {point.x: y(point) for point in line.points}
        rows.append((line.name, *(by_step.get(step, "-") for step in steps)))
    return Table(caption, (corner, *map(x, steps)), tuple(rows))
