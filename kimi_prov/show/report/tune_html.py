"""A tune document as one HTML file: it opens offline, prints, and needs no script.

Decides: the HTML report of a tune.
Held by: tests/unit/show/report/test_tune_page.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.contract.durations import format_duration
from kimi_prov.show.report import charts, html
from kimi_prov.show.report.plots import Line, Point, Table
from kimi_prov.show.text.formats import clean

if TYPE_CHECKING:
    from kimi_prov.contract.documents.tune import Tune, TunedHost, TuneRow

# Settings whose candidates are numbers: their rates make a curve.
_CURVES = {
    "requests": ("kimi_concurrency", "Requests at once"),
    "threads": ("kimi_threads", "Threads"),
}


def render_page(document: Tune) -> str:
    """Return the page."""
    hosts = document["hosts"]
    names = ", ".join(clean(name) for name in list(hosts)[:3])
    return html.render_template(
        "tune_page.html.j2",
        title=f"Tuned: {names}{', ...' if len(hosts) > 3 else ''}",
        charts=charts,
        hosts=[_describe_host(name, host) for name, host in hosts.items()],
    )


def _describe_host(name: str, host: TunedHost) -> dict[str, object]:
    part: dict[str, object] = {"name": name, "ok": host["ok"], "detail": host["detail"]}
    part["stand_ins"] = host.get("stand_ins") or []
    if not host.get("served"):
        return {**part, "facts": [], "plots": [], "table": None}
    rows = [row for row in (host["served"], *host["candidates"], host["again"]) if row]
    return {
        **part,
        "facts": _list_facts(host),
        "plots": [plot for plot in (_draw_curve(host, name) for name in _CURVES) if plot],
        "table": _build_table(rows),
        "reasons": [f"{row['label']}: {row['reason']}" for row in rows if row["reason"]],
        "lines": clean_text.clean_block(host["lines"]) if host["lines"] else "",
        "left_out": _build_left_out(host),
    }


def _list_facts(host: TunedHost) -> list[tuple[str, str]]:
    engine, outcome = host["engine"], host["outcome"]
    facts = [
        ("Model", f"{host['model']} on {engine['name']} {engine['version']}"),
        ("Rated by", f"{host['purpose']}, {host['users']} requests at once"),
        ("Without an answer", format_duration(outcome["seconds"])),
    ]
    if host["noise"] is not None:
        facts.append(("Noise", f"{host['noise']:.1%} between rounds of what serves"))
    if host["note"]:
        facts.append(("Note", host["note"]))
    if host["written"]:
        facts.append(("Written", host["written"]))
    return facts


def _draw_curve(host: TunedHost, setting: str) -> dict[str, object] | None:
    """Draw the rates of a setting's numbers; a single one has no curve."""
    variable, axis = _CURVES[setting]
    rows = [row for row in host["candidates"] if row["setting"] == setting and row["rate"]]
    measured = [
        Point(float(row["variables"][variable]), rate["median"], rate["low"], rate["high"])
        for row in rows
        if (rate := row["rate"])
    ]
    served = host["served"]
    serving = served["serving"] if served else None
    now = (
        (serving["concurrency"] if setting == "requests" else serving["threads"]) if serving else 0
    )
    if served and now and (rate := served["rate"]):
        measured.append(Point(float(now), rate["median"], rate["low"], rate["high"]))
    estimated = [
        Point(float(row["variables"][variable]), guess["expected"], guess["low"], guess["high"])
        for row in rows
        if (guess := row["estimate"])
    ]
    lines = [
        Line(rank, name, tuple(sorted(points, key=lambda point: point.x)))
        for rank, (name, points) in enumerate((("measured", measured), ("estimated", estimated)), 1)
        if points
    ]
    points = [point for line in lines for point in line.points]
    if len(measured) < 2:
        return None
    values = [value for p in points for value in (p.low, p.y, p.high) if value]
    title = f"{axis} and the rate"
    return {
        "title": title,
        "note": "Medians; bands: the slowest and the fastest round, or the estimated range.",
        "x": axis,
        "y": "Tokens a second",
        "chart": charts.draw_lines(
            lines,
            charts.choose_doubling_axis(point.x for point in points),
            charts.choose_axis(values),
            label=title,
        ),
        "key": lines,
        "said": [],
        "table": Table(
            title,
            (axis, *(line.name for line in lines)),
            tuple(
                (f"{x:g}", *(_find_value(line, x) for line in lines))
                for x in sorted({point.x for point in points})
            ),
        ),
    }


def _find_value(line: Line, x: float) -> str:
    return next((f"{point.y:.4g}" for point in line.points if point.x == x), "-")


def _build_table(rows: list[TuneRow]) -> Table:
    head = ("Candidate", "Tokens/s", "Rounds", "Estimated", "Gain", "Start", "Result")
    return Table("Rates of all candidates", head, tuple(map(_build_row, rows)))


def _build_row(row: TuneRow) -> tuple[str, ...]:
    rate, estimate = row["rate"], row["estimate"]
    return (
        clean(row["label"]),
        f"{rate['median']:.4g}" if rate else "-",
        f"{rate['low']:.4g} to {rate['high']:.4g}" if rate else "-",
        f"{estimate['low']:.3g} to {estimate['high']:.3g}" if estimate else "-",
        "-" if row["gain"] is None else f"{row['gain']:+.1%}",
        format_duration(row["start_s"]) if row["start_s"] else "-",
        row["state"],
    )


def _build_left_out(host: TunedHost) -> Table | None:
    rows = tuple((clean(r["name"]), clean(r["text"]), clean(r["reason"])) for r in host["left_out"])
    head = ("Setting", "What", "Why not")
    return Table("Settings that were not tried", head, rows) if rows else None
