"""Every file that is made from the definitions here, for `make docs` and the test that holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.monitoring import CONSOLES, DASHBOARDS, HERE, RULES, console, grafana, pages, rules

if TYPE_CHECKING:
    from pathlib import Path


def files() -> dict[Path, str]:
    """Return each generated file with its text."""
    docs = HERE.parents[1] / "docs" / "alerts"
    return {
        RULES / "kimi-signals.yml": rules.recorded(),
        RULES / "kimi-alerts.yml": rules.alerting(),
        DASHBOARDS / "kimi-hosts.json": grafana.overview(),
        DASHBOARDS / "kimi-host.json": grafana.host(),
        CONSOLES / "kimi.html": console.page(),
        CONSOLES / rules.ALERTS_CONSOLE: pages.console(),
        **{docs / name: text for name, text in pages.files()},
    }
