"""Dashboards for a site's own Grafana: one of all hosts, one of a host.

Decides: which panels show the metrics (Grafana's form).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kimi_prov.monitoring.panels import ROWS
from kimi_prov.monitoring.series import fill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.monitoring.panels import Line, Panel

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _PER_ROW = 8, 8, 3
# The schema of Grafana 10.
_SCHEMA = 38
_UNITS = {
    "requests": "short",
    "tokens/s": "short",
    "seconds": "s",
    "ratio": "percentunit",
    "per second": "short",
    "per minute": "short",
    "watts": "watt",
    "celsius": "celsius",
    "bytes": "bytes",
    "bytes/s": "Bps",
    # Grafana's own unit of days becomes weeks.
    "days": "suffix:days",
    "count": "short",
}


def make_overview() -> str:
    """Return the dashboard of all hosts, in which hosts can be chosen."""
    return _make_dashboard("kimi-prov-hosts", "Kimi: all hosts", by="host", many=True)


def make_host_dashboard() -> str:
    """Return the dashboard of one host, with its instances."""
    return _make_dashboard("kimi-prov-host", "Kimi: one host", by="host, engine", many=False)


def _make_dashboard(uid: str, title: str, *, by: str, many: bool) -> str:
    panels: list[dict[str, Any]] = []
    top = 0
    for heading, row in ROWS:
        panels.append(_make_heading(len(panels) + 1, heading, top))
        top += 1
        for at, panel in enumerate(row):
            grid = {"x": at % _PER_ROW * _WIDTH, "y": top + at // _PER_ROW * _HEIGHT}
            panels.append(_make_panel(len(panels) + 1, panel, grid, by))
        top += -(-len(row) // _PER_ROW) * _HEIGHT
    return make_document(uid, title, [_make_hosts_variable(many=many)], panels) + "\n"


def make_document(
    uid: str, title: str, variables: Sequence[dict[str, Any]], panels: Sequence[dict[str, Any]]
) -> str:
    """Return a dashboard as JSON; its first variable chooses the Prometheus."""
    content = {
        "uid": uid,
        "title": title,
        "tags": ["kimi-prov"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_PROMETHEUS, *variables]},
        "links": [
            {
                "type": "dashboards",
                "title": "Kimi",
                "tags": ["kimi-prov"],
                "asDropdown": False,
                "includeVars": False,
                "keepTime": True,
                "targetBlank": False,
                "icon": "external link",
                "tooltip": "",
                "url": "",
            }
        ],
        "panels": [*panels],
    }
    return json.dumps(content, indent=1)


_PROMETHEUS = {
    "name": "datasource",
    "label": "Prometheus",
    "type": "datasource",
    "query": "prometheus",
    "refresh": 1,
    "hide": 0,
    "multi": False,
    "includeAll": False,
}


def make_variable(name: str, label: str, query: str, *, many: bool = False) -> dict[str, Any]:
    """Return a dashboard's variable with the results of `query`; `many` can be chosen, or one."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "refresh": 2,
        "sort": 1,
        "hide": 0,
        "multi": many,
        "includeAll": many,
    }


def _make_hosts_variable(*, many: bool) -> dict[str, Any]:
    variable = make_variable("host", "Host", 'label_values(up{job=~"kimi-.*"}, host)', many=many)
    return variable | ({"allValue": ".*"} if many else {})


def _make_heading(panel_id: int, title: str, top: int) -> dict[str, Any]:
    grid = {"x": 0, "y": top, "w": 24, "h": 1}
    return {
        "id": panel_id,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": grid,
        "panels": [],
    }


def _make_panel(panel_id: int, panel: Panel, grid: dict[str, int], by: str) -> dict[str, Any]:
    lines = [line for line in panel.lines if "engine" in by or not line.alone]
    targets = [
        (
            fill(line.expression, by=by, sel='host=~"$host"', window="$__rate_interval"),
            make_legend(line, panel, by),
        )
        for line in lines
    ]
    made = make_timeseries(
        panel_id,
        panel.title,
        panel.unit,
        targets,
        grid | {"w": _WIDTH, "h": _HEIGHT},
        note=panel.note,
        maximum=panel.maximum,
    )
    made["fieldConfig"]["overrides"] = [
        _draw_dashed(make_legend(line, panel, by)) for line in lines if line.dash
    ]
    return made


def make_timeseries(
    panel_id: int,
    title: str,
    unit: str,
    lines: Sequence[tuple[str, str]],
    grid: dict[str, int],
    *,
    note: str,
    maximum: float | None = None,
) -> dict[str, Any]:
    """Return a panel of Grafana: `lines` are expressions with their legends.

    `unit`: as of `panels.Panel`. `grid`: x, y, w and h in Grafana's grid of 24 columns.
    """
    defaults: dict[str, Any] = {"unit": _UNITS[unit], "min": 0}
    if maximum is not None:
        defaults["max"] = maximum
    return {
        "id": panel_id,
        "type": "timeseries",
        "title": title,
        "description": note,
        "datasource": _SOURCE,
        "gridPos": grid,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {
                "showLegend": True,
                "displayMode": "list",
                "placement": "bottom",
                "calcs": [],
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": called,
                "range": True,
            }
            for at, (expression, called) in enumerate(lines)
        ],
    }


def make_legend(line: Line, panel: Panel, by: str) -> str:
    """Return the legend of a line: its host, its instance if it has one, and its name."""
    engine = "<by>" in line.expression and "engine" in by and not panel.of_host
    labels = ["host", *(["engine"] if engine else [])]
    words = [f"{{{{{name}}}}}" for name in labels]
    # In a panel of many hosts the GPUs of each are one line.
    kept = [name for name in line.labels if name != "gpu" or "engine" in by]
    own = [word for word in (line.name, *(f"{{{{{name}}}}}" for name in kept)) if word]
    return " ".join([*words, *own])


def _draw_dashed(name: str) -> dict[str, Any]:
    """Draw a line dashed that only serves to compare; its legend holds the host."""
    pattern = f"/ {name.rpartition('}} ')[2]}$/"
    return {
        "matcher": {"id": "byRegexp", "options": pattern},
        "properties": [
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
            {"id": "custom.fillOpacity", "value": 0},
        ],
    }
