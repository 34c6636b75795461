"""A bench document as one HTML file: it opens offline, prints, and needs no script.

Decides: the HTML report of a bench.
Held by: tests/unit/show/report/test_bench_page.py,
  tests/component/show/report/test_bench_page_drawn.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.show.report import bench_tables, charts, html
from kimi_prov.show.text.formats import clean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.show.report.plots import Line


def render_page(document: Mapping[str, Any]) -> str:
    """Return the page."""
    hosts = document["hosts"]
    return html.render_template(
        "bench_page.html.j2",
        title=_build_title(hosts),
        charts=charts,
        tables=bench_tables,
        hosts=[(name, host, _draw_plots(host)) for name, host in hosts.items()],
    )


def _build_title(hosts: Mapping[str, Any]) -> str:
    """Return the title: models and hosts of the figures."""
    models = {host["model"] for host in hosts.values() if bench_tables.has_measurements(host)}
    what = clean(models.pop()) if len(models) == 1 else "models"
    names = ", ".join(clean(name) for name in list(hosts)[:3])
    return f"Measured: {what} on {names}{', ...' if len(hosts) > 3 else ''}"


def _draw_plots(host: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Draw the curves of a sweep; a single load has none."""
    if not bench_tables.has_measurements(host) or len(host["serve"]["levels"]) < 2:
        return []
    found = [
        _draw_plot(
            bench_tables.build_throughput_lines(host),
            "Tokens a second of all requests together",
            "The time includes reading the prompts. Bands: spread of the rounds, and the predicted "
            "range.",
            "Tokens/s of all together",
        ),
        _draw_plot(
            bench_tables.build_first_token_lines(host),
            "Time to the first token",
            "Medians; where requests wait for each other, it grows.",
            "Seconds to the first token",
        ),
    ]
    return [plot for plot in found if plot is not None]


def _draw_plot(rows: Sequence[Line], title: str, note: str, y: str) -> dict[str, Any] | None:
    points = [point for row in rows for point in row.points]
    if not points:
        return None
    values = [value for p in points for value in (p.low, p.y, p.high) if value]
    label = "; ".join(
        f"{row.name} from {row.points[0].y:.3g} at {row.points[0].x:g} to "
        f"{row.points[-1].y:.3g} at {row.points[-1].x:g}"
        for row in rows
    )
    x = charts.choose_doubling_axis(point.x for point in points)
    return {
        "title": title,
        "note": note,
        "x": "Requests at once",
        "y": y,
        "chart": charts.draw_lines(rows, x, charts.choose_axis(values), label=f"{title}: {label}"),
        "key": list(rows),
        "said": [],
        "table": bench_tables.build_line_table(title, rows),
    }
