"""A check document as one HTML file: it opens offline, prints, and needs no script."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kimi_prov import __version__
from kimi_prov.contract.sizes import human
from kimi_prov.report import (
    assumptions,
    capacity,
    charts,
    comparison,
    cost_text,
    findings,
    formats,
    measured,
    memory_bars,
    verdict,
)
from kimi_prov.report.comparison import SPEEDS
from kimi_prov.report.formats import Span, clean, duration_range, money, money_range, span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HERE = Path(__file__).resolve().parent
# Columns that fit beside each other on a sheet of paper.
_ABREAST = 4
# What the template calls, by its module's name.
_MODULES = {
    "assumptions": assumptions,
    "capacity": capacity,
    "charts": charts,
    "comparison": comparison,
    "cost_text": cost_text,
    "findings": findings,
    "formats": formats,
    "measured": measured,
    "memory_bars": memory_bars,
    "verdict": verdict,
}


def check(document: Mapping[str, Any]) -> str:
    """Give the page."""
    targets = document["targets"]
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clean": clean, "bytes": human, "money": money}
    # Our own file, no user's text in it.
    style = Markup((_HERE / "page.css").read_text(encoding="utf-8"))  # noqa: S704
    today = datetime.now(UTC).date()
    return environment.get_template("page.html.j2").render(
        **_MODULES,
        style=style,
        version=__version__,
        date=f"{today.day} {today:%B %Y}",
        title=verdict.title(targets),
        targets=targets,
        chunks=[targets[at : at + _ABREAST] for at in range(0, len(targets), _ABREAST)],
        plots=[*_speeds(targets), *_costs(targets)],
        command=_command,
    )


def _speeds(targets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Draw each speed over one scale for all targets that have one."""
    found = []
    for key, label, unit in SPEEDS:
        rows = [(t["name"], span(t["plan"]["throughput"][key])) for t in targets]
        texts = [_text(key, row) for _, row in rows]
        found.append(_plot("speed", f"{label}, {unit}", rows, texts))
    return [plot for plot in found if plot["known"]]


def _costs(targets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Draw what a million output tokens cost on each target, and what the APIs ask."""
    rows = [(t["name"], span(t["cost"]["usd_per_million_output_tokens"])) for t in targets]
    if not any(row.expected for _, row in rows):
        return []
    for target in targets:
        for api in target["cost"]["break_even"]:
            price = api["api_usd_per_million_output_tokens"]
            row = (f"API of {api['api']}", Span(None, price, None))
            if row not in rows:
                rows.append(row)
    texts = [money_range(row) for _, row in rows]
    return [_plot("cost", "Dollars for a million output tokens and their input", rows, texts)]


def _plot(
    kind: str, title: str, rows: Sequence[tuple[str, Span]], texts: Sequence[str]
) -> dict[str, Any]:
    pictures, axis, log = charts.spans([row for _, row in rows])
    return {
        "kind": kind,
        "title": title,
        "axis": axis,
        "log": log,
        "known": any(row.expected is not None for _, row in rows),
        "rows": [
            {"name": name, "picture": picture, "text": text}
            for (name, _), picture, text in zip(rows, pictures, texts, strict=True)
        ],
    }


def _text(key: str, row: Span) -> str:
    return duration_range(row) if key == "load_s" else str(row)


def _command(instance: Mapping[str, Any]) -> str:
    """Give the command a flag a line, as a shell would take it."""
    lines: list[list[str]] = [[]]
    for word in (*instance["numactl"], *instance["argv"]):
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(clean(shlex.quote(word)))
    return " \\\n  ".join(" ".join(line) for line in lines if line)
