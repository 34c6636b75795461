"""Generate every file from the definitions here, for `make docs` and its test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.monitoring import (
    CONSOLES,
    DASHBOARDS,
    HERE,
    RULES,
    alert_pages,
    console,
    grafana,
    rules,
)

if TYPE_CHECKING:
    from pathlib import Path


def make_files() -> dict[Path, str]:
    """Return each generated file with its text."""
    docs = HERE.parents[1] / "docs" / "alerts"
    return {
        RULES / "kimi-signals.yml": rules.make_recording_rules(),
        RULES / "kimi-alerts.yml": rules.make_alerting_rules(),
        DASHBOARDS / "kimi-hosts.json": grafana.make_overview(),
        DASHBOARDS / "kimi-host.json": grafana.make_host_dashboard(),
        CONSOLES / "kimi.html": console.make_page(),
        CONSOLES / rules.ALERTS_CONSOLE: alert_pages.make_console_page(),
        **{docs / name: text for name, text in alert_pages.make_files()},
    }
