"""Dashboards for a Grafana that a site has: one of all hosts, one of a host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kimi_prov.monitoring.panels import ROWS
from kimi_prov.monitoring.series import fill

if TYPE_CHECKING:
    from kimi_prov.monitoring.panels import Line, Panel

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _PER_ROW = 8, 8, 3
# Of Grafana 10.
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
    # Its own unit of days turns to weeks.
    "days": "suffix:days",
    "count": "short",
}


def overview() -> str:
    """Return the dashboard of all hosts, of which some can be chosen."""
    return _dashboard("kimi-prov-hosts", "Kimi: all hosts", by="host", many=True)


def host() -> str:
    """Return the dashboard of one host, with its instances."""
    return _dashboard("kimi-prov-host", "Kimi: one host", by="host, engine", many=False)


def _dashboard(uid: str, title: str, *, by: str, many: bool) -> str:
    panels: list[dict[str, Any]] = []
    top = 0
    for heading, row in ROWS:
        panels.append(_heading(len(panels) + 1, heading, top))
        top += 1
        for at, panel in enumerate(row):
            place = {"x": at % _PER_ROW * _WIDTH, "y": top + at // _PER_ROW * _HEIGHT}
            panels.append(_panel(len(panels) + 1, panel, place, by))
        top += -(-len(row) // _PER_ROW) * _HEIGHT
    content = {
        "uid": uid,
        "title": title,
        "tags": ["kimi-prov"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables(many=many)},
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
        "panels": panels,
    }
    return json.dumps(content, indent=1) + "\n"


def _variables(*, many: bool) -> list[dict[str, Any]]:
    source = {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "hide": 0,
        "multi": False,
        "includeAll": False,
    }
    hosts = {
        "name": "host",
        "label": "Host",
        "type": "query",
        "datasource": _SOURCE,
        "query": 'label_values(up{job=~"kimi-.*"}, host)',
        "refresh": 2,
        "sort": 1,
        "hide": 0,
        "multi": many,
        "includeAll": many,
    }
    return [source, hosts | ({"allValue": ".*"} if many else {})]


def _heading(number: int, title: str, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": 24, "h": 1}
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": place,
        "panels": [],
    }


def _panel(number: int, panel: Panel, place: dict[str, int], by: str) -> dict[str, Any]:
    lines = [line for line in panel.lines if "engine" in by or not line.alone]
    defaults: dict[str, Any] = {"unit": _UNITS[panel.unit], "min": 0}
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.note,
        "datasource": _SOURCE,
        "gridPos": place | {"w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {
            "defaults": defaults,
            "overrides": [_dashed(legend(line, panel, by)) for line in lines if line.dash],
        },
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
                "expr": fill(
                    line.expression, by=by, sel='host=~"$host"', window="$__rate_interval"
                ),
                "legendFormat": legend(line, panel, by),
                "range": True,
            }
            for at, line in enumerate(lines)
        ],
    }


def legend(line: Line, panel: Panel, by: str) -> str:
    """Return what a line is called: its host, its instance where it has one, and itself."""
    engine = "<by>" in line.expression and "engine" in by and not panel.of_host
    labels = ["host", *(["engine"] if engine else [])]
    words = [f"{{{{{name}}}}}" for name in labels]
    # In the picture of many hosts their GPUs are one.
    kept = [name for name in line.labels if name != "gpu" or "engine" in by]
    own = [word for word in (line.name, *(f"{{{{{name}}}}}" for name in kept)) if word]
    return " ".join([*words, *own])


def _dashed(name: str) -> dict[str, Any]:
    """Draw a line dashed that is only to be compared with; the legend has its host in it."""
    pattern = f"/ {name.rpartition('}} ')[2]}$/"
    return {
        "matcher": {"id": "byRegexp", "options": pattern},
        "properties": [
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
            {"id": "custom.fillOpacity", "value": 0},
        ],
    }
