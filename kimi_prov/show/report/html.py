"""A check document as one HTML file: it opens offline, prints, and needs no script."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kimi_prov import __version__
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.show.report import (
    assumptions,
    capacity,
    charts,
    comparison,
    cost_text,
    findings,
    measured,
    memory_bars,
    ranking,
    reading,
    verdict,
)
from kimi_prov.show.report import plots as lines
from kimi_prov.show.text import formats
from kimi_prov.show.text.formats import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.contract.documents.check import Check
    from kimi_prov.contract.documents.plan.engine import InstancePlan
    from kimi_prov.show.report.plots import Line

_HERE = Path(__file__).resolve().parent
# Modules whose functions the template calls, by name.
_MODULES = {
    "assumptions": assumptions,
    "capacity": capacity,
    "charts": charts,
    "comparison": comparison,
    "cost_text": cost_text,
    "findings": findings,
    "formats": formats,
    "lines": lines,
    "measured": measured,
    "memory_bars": memory_bars,
    "ranking": ranking,
    "reading": reading,
    "verdict": verdict,
}


def render_check(document: Check) -> str:
    """Return the page."""
    targets = document["targets"]
    return render_template(
        "page.html.j2",
        **_MODULES,
        title=verdict.format_title(targets),
        document=document,
        targets=targets,
        ordered=ranking.sort_targets(document),
        index={target["name"]: number for number, target in enumerate(targets, 1)},
        settle=findings.list_to_settle(targets),
        plots=_draw_plots(document),
        command=_format_command,
    )


def render_template(template: str, **values: Any) -> str:  # noqa: ANN401  (what the template names)
    """Return a page from a template of this package, with the common style."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clean": clean, "bytes": format_bytes}
    # The style is our own file without a user's text.
    style = Markup((_HERE / "page.css").read_text(encoding="utf-8"))  # noqa: S704
    today = datetime.now(UTC).date()
    return environment.get_template(template).render(
        style=style, version=__version__, date=f"{today.day} {today:%B %Y}", **values
    )


def _draw_plots(document: Check) -> list[dict[str, Any]]:
    """Draw the plots that have figures."""
    drawn = (_draw_decode(document), _draw_both_speeds(document), _draw_cost(document))
    return [plot for plot in drawn if plot is not None]


def _draw_decode(document: Check) -> dict[str, Any] | None:
    rows = lines.build_decode_lines(document)
    if not rows:
        return None
    points = [point for row in rows for point in row.points]
    y = charts.choose_axis(
        value for point in points for value in (point.low, point.y, point.high) if value
    )
    return {
        "kind": "speed",
        "title": "Decode against requests at once",
        "note": "The speed of each of so many requests; the bands show where a measurement is "
        "expected.",
        "x": "Requests at once",
        "y": "Decode of each request, tokens/s",
        "chart": charts.draw_lines(
            rows,
            charts.choose_doubling_axis(point.x for point in points),
            y,
            label=_describe_plot("Decode of each request in tokens/s, by requests at once", rows),
            # On a linear scale both paces would be at the bottom.
            levels=[
                level
                for level in lines.PACES
                if y.scale.log and y.scale.low <= level.y <= y.scale.high
            ],
        ),
        "key": rows,
        "said": [],
        "table": lines.build_decode_table(document),
    }


def _draw_both_speeds(document: Check) -> dict[str, Any] | None:
    rows = lines.build_speed_lines(document)
    if not rows:
        return None
    points = [point for row in rows for point in row.points]
    best = lines.find_front(rows)
    names = ", ".join(dict.fromkeys(line.name for line, _ in best))
    return {
        "kind": "speed",
        "title": "Speed for one against speed for all",
        "note": "Each dot is a number of requests at once, one alone at the right. The broad line "
        "is the Pareto front: nothing is better in both.",
        "x": "Decode of each request, tokens/s",
        "y": "Decode of all together, tokens/s",
        "chart": charts.draw_lines(
            rows,
            charts.choose_axis(point.x for point in points),
            charts.choose_axis(point.y for point in points),
            label=_describe_plot("Decode of all together against that of each, in tokens/s", rows),
            front=[point for _, point in best],
        ),
        "key": rows,
        "said": [f"On the front: {names}."],
        "table": lines.build_front_table(document),
    }


def _draw_cost(document: Check) -> dict[str, Any] | None:
    rows = lines.build_cost_lines(document)
    if not rows:
        return None
    api = lines.find_api_level(document)
    prices = [point.y for row in rows for point in row.points]
    rings = lines.find_break_evens(document)
    return {
        "kind": "cost",
        "title": "Cost of a million output tokens against use",
        "note": "With the planned requests at once and the input that comes with the tokens."
        + " Rings: where a machine breaks even with the API." * bool(rings),
        "x": "Share of all hours in use",
        "y": "Dollars for a million output tokens",
        "chart": charts.draw_lines(
            rows,
            charts.build_share_axis(),
            charts.choose_axis([*prices, *([api.y] if api else [])], "$"),
            label=_describe_plot(
                "Dollars for a million output tokens, by share of hours in use", rows
            ),
            levels=[api] if api else [],
            rings=rings,
        ),
        "key": rows,
        "said": lines.describe_break_evens(document),
        "table": lines.build_cost_table(document),
    }


def _describe_plot(title: str, rows: Sequence[Line]) -> str:
    """Describe a plot for readers who do not see it: each line's ends."""
    ends = [
        f"{row.name} from {formats.format_figure(row.points[0].y)} at {row.points[0].x:.4g} "
        f"to {formats.format_figure(row.points[-1].y)} at {row.points[-1].x:.4g}"
        for row in rows
    ]
    return f"{title}: {'; '.join(ends)}"


def _format_command(instance: InstancePlan) -> str:
    """Write the command for a shell, one flag a line."""
    lines: list[list[str]] = [[]]
    for word in (*instance["numactl"], *instance["argv"]):
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(clean(shlex.quote(word)))
    return " \\\n  ".join(" ".join(line) for line in lines if line)
