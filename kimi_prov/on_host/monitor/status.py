"""A monitoring host's part of `status`: its targets, its alerts, its disk use."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text, unit_names
from kimi_prov.on_host.monitor import config
from kimi_prov.on_host.system import units
from kimi_prov.on_host.system.files import count_disk_bytes, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.status.monitor import FiringAlert, MonitorState, MonitorStatus
    from kimi_prov.contract.paths import Paths

_TIMEOUT_S = 10.0
_MAX_BYTES = 16 << 20
# Rows of a list at most; the total is reported beside it.
_MAX_ALERTS = 50
_FAULTS = (ValueError, LookupError, TypeError, AttributeError)


def read_page(url: str) -> str:
    """Return the answer of a URL on this machine; empty without one."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as reply:
            return str(reply.read(_MAX_BYTES).decode(errors="replace"))
    except (OSError, ValueError):
        return ""


def parse_targets(text: str) -> list[dict[str, str]] | None:
    """Parse /api/v1/targets: what each target is and its health; None for another form."""
    try:
        return [
            {
                **{name: _read_label(row, name) for name in ("host", "job", "engine")},
                "health": clean_text.clean_line(row["health"]),
            }
            for row in json.loads(text)["data"]["activeTargets"]
        ]
    except _FAULTS:
        return None


def parse_alerts(text: str) -> list[FiringAlert] | None:
    """Parse /api/v1/alerts: those that fire, the oldest first; None for another form."""
    try:
        found: list[FiringAlert] = [
            {
                "name": clean_text.clean_line(row["labels"]["alertname"]),
                "host": _read_label(row, "host"),
                "severity": _read_label(row, "severity"),
                "summary": clean_text.clean_line(row["annotations"].get("summary", "")),
                "since": clean_text.clean_line(row["activeAt"])[:19] + "Z",
            }
            for row in json.loads(text)["data"]["alerts"]
            if row["state"] == "firing"
        ]
    except _FAULTS:
        return None
    return sorted(found, key=lambda row: (row["since"], row["name"], row["host"]))


def _read_label(row: Mapping[str, Any], name: str) -> str:
    return clean_text.clean_line(row["labels"].get(name, ""))


def build_section(paths: Paths) -> MonitorStatus | None:
    """Return the status of the monitoring on this machine; None where there is none."""
    settings = read_json(paths.monitor_etc / "settings.json")
    if not settings:
        return None
    url = f"http://{config.bracket_address(settings['listen'])}:{settings['port']}/api/v1"
    states = units.read_states(unit_names.PROMETHEUS, unit_names.ALERTMANAGER)
    seen, firing = (
        parse_targets(read_page(f"{url}/targets")),
        parse_alerts(read_page(f"{url}/alerts")),
    )
    down = [row for row in seen or [] if row["health"] != "up"]
    return {
        "prometheus": states.get(unit_names.PROMETHEUS, {}).get("state"),
        "alertmanager": states.get(unit_names.ALERTMANAGER, {}).get("state"),
        "answers": seen is not None and firing is not None,
        "listen": settings["listen"],
        "port": settings["port"],
        "targets": len(seen or []),
        "targets_down": len(down),
        "down": [
            {"host": row["host"], "job": row["job"], "engine": row["engine"]}
            for row in down[:_MAX_ALERTS]
        ],
        "alerts_firing": len(firing or []),
        "alerts": (firing or [])[:_MAX_ALERTS],
        "series_bytes": count_disk_bytes(paths.monitor_home / "prometheus"),
        # An earlier version kept it only in the unit.
        "series_limit_bytes": settings.get("retention_bytes"),
    }


def build_document(paths: Paths) -> MonitorState | None:
    """Return the status of a machine that only monitors; None for others."""
    found = build_section(paths)
    if found is None:
        return None
    parts = {name: found[name] for name in ("prometheus", "alertmanager")}
    away = [name for name, state in parts.items() if state != "active"]
    detail = f"watches {found['targets']} targets; alerts firing: {found['alerts_firing']}"
    if away:
        detail = "not active: " + ", ".join(away)
    elif not found["answers"]:
        detail = "Prometheus does not answer"
    return {
        "ok": found["answers"] and not away,
        "provisioned": True,
        "detail": detail,
        "monitor": found,
    }
