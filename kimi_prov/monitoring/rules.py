"""The rules for Prometheus: recorded signals, and the alerts on them.

Decides: which alerts there are, what they say, and their pages (the rules for Prometheus).
"""

from __future__ import annotations

from typing import Any

import yaml

from kimi_prov.monitoring import alerts
from kimi_prov.monitoring.series import SIGNALS, fill

HEAD = "# Made from kimi_prov/monitoring by `make docs`; do not edit.\n"
_WINDOW = "5m"
# The monitor's page of all alerts, beside the consoles.
ALERTS_CONSOLE = "kimi-alerts.html"


class _Dumper(yaml.SafeDumper):
    """Keeps the lines of expressions."""


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _represent_text)


def _dump(groups: list[dict[str, Any]]) -> str:
    return HEAD + yaml.dump(
        {"groups": groups}, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True
    )


def make_recording_rules() -> str:
    """Return the file of recording rules: one name for both engines, by host and engine."""
    rows = [
        {
            "record": signal.recorded,
            "expr": fill(signal.expression(), by="host, engine", sel="", window=_WINDOW),
        }
        for signal in SIGNALS
    ]
    verified = {
        "record": "kimi:weights_verified_of_plan",
        "expr": "max by (host, hash) "
        "(kimi_weights_verified * on (host) group_left (hash) kimi_plan_info)",
    }
    return _dump([{"name": "kimi-signals", "rules": [*rows, verified]}])


def make_alerting_rules() -> str:
    """Return the file of the alerts."""
    return _dump([{"name": "kimi-alerts", "rules": [_make_rule(alert) for alert in alerts.load()]}])


def _make_rule(alert: alerts.Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.hold,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{{{{ $externalURL }}}}/consoles/{ALERTS_CONSOLE}#{alert.name}",
            "page": alert.page,
        },
    }
