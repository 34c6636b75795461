"""A page for each alert in the docs, and one page of all alerts that the monitor shows.

Decides: which alerts there are, what they say, and their pages (the pages).
"""

from __future__ import annotations

import html
import re
from itertools import chain
from typing import TYPE_CHECKING

from kimi_prov.monitoring import HERE, alerts

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOTE = "<!-- Made from kimi_prov/monitoring/alerts.yaml by `make docs`; do not edit. -->"
_CODE = re.compile(r"`([^`]+)`")
_SEVERITIES = {
    "critical": "clients are without answers, or soon will be",
    "warning": "to be handled in working hours",
}


def make_page(alert: alerts.Alert) -> str:
    """Return the alert's page of the docs."""
    steps = [f"{index}. {text}" for index, text in enumerate(alert.steps, 1)]
    expression = [f"    {line}" for line in alert.expression.splitlines()]
    return _join_names(
        f"# {alert.name}: {_lower(alert.title)}",
        "",
        _NOTE,
        "",
        f"Severity: {alert.severity} ({_SEVERITIES[alert.severity]}). [All alerts](README.md).",
        "",
        "## What it means",
        "",
        _format_links(_format_line(alert.means), alert),
        "",
        "## What to do",
        "",
        *(_format_links(step, alert) for step in steps),
        "",
        "It ends by itself when the condition does.",
        "",
        "## When it fires",
        "",
        f"When this holds for {_format_duration(alert.hold)}:"
        if _format_duration(alert.hold)
        else "As soon as this holds:",
        "",
        *expression,
        "",
        f"Silent for: {alert.silent}.",
    )


def make_overview() -> str:
    """Return the page that lists the alerts."""
    rows = [
        f"| [{alert.name}]({alert.name}.md) | {alert.title} | {alert.severity} "
        f"| {_format_duration(alert.hold) or 'at once'} |"
        for alert in alerts.load()
    ]
    return _join_names(
        "# Alerts",
        "",
        _NOTE,
        "",
        "What a monitoring host reports, each with its page. How they are delivered and changed:",
        "[the guide](../guides/alerts.md).",
        "",
        *(f"- `{name}`: {text}" for name, text in _SEVERITIES.items()),
        "",
        "| alert | what happened | severity | reported after |",
        "| --- | --- | --- | --- |",
        *rows,
    )


def make_console_page() -> str:
    """Return the monitor's page of all alerts, with an anchor for each."""
    template = (HERE / "console_source" / "alerts.html").read_text(encoding="utf-8")
    style = (HERE / "console_source" / "style.css").read_text(encoding="utf-8")
    links = "".join(
        f'<li><a href="#{alert.name}">{alert.name}</a> {html.escape(alert.title)}</li>'
        for alert in alerts.load()
    )
    articles = "\n".join(map(_format_article, alerts.load()))
    return (
        template.replace("/*STYLE*/", style)
        .replace("<!--LINKS-->", links)
        .replace("<!--ALERTS-->", articles)
    )


def _format_article(alert: alerts.Alert) -> str:
    steps = "".join(f"<li>{_format_markup(step)}</li>" for step in alert.steps)
    return (
        f'<article id="{alert.name}"><h2>{alert.name}</h2>'
        f'<p><b class="{alert.severity}">{alert.severity}</b> {html.escape(alert.title)}.</p>'
        f"<p>{_format_markup(_format_line(alert.means))}</p><h3>What to do</h3><ol>{steps}</ol>"
        f'<p class="note">Silent for: {html.escape(alert.silent)}.</p></article>'
    )


def _format_markup(text: str) -> str:
    return _CODE.sub(lambda match: f"<code>{match[1]}</code>", html.escape(text, quote=False))


def _format_links(text: str, own: alerts.Alert) -> str:
    names = {alert.name for alert in alerts.load()} - {own.name}
    return _CODE.sub(
        lambda match: f"[{match[1]}]({match[1]}.md)" if match[1] in names else match[0], text
    )


def _format_duration(hold: str) -> str:
    amount, unit = int(hold[:-1]), hold[-1]
    assert unit == "m", hold  # noqa: S101  (alerts.yaml has minutes)
    return f"{amount} minute{'s' if amount > 1 else ''}" if amount else ""


def _lower(title: str) -> str:
    return title[:1].lower() + title[1:] if title[:3] != "GPU" else title


def _format_line(text: str) -> str:
    return " ".join(text.split())


def _join_names(*lines: str) -> str:
    return "\n".join(chain(lines, [""]))


def make_files() -> Iterator[tuple[str, str]]:
    """Yield each page of the docs' folder `alerts` with its text."""
    yield "README.md", make_overview()
    for alert in alerts.load():
        yield f"{alert.name}.md", make_page(alert)
