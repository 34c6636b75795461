"""The alerts as `alerts.yaml` defines them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import yaml

from kimi_prov.monitoring import HERE
from kimi_prov.monitoring.series import FILE_SYSTEMS


@dataclass(frozen=True)
class Alert:
    """One alert: its rule, what it says, and its page."""

    name: str
    title: str
    severity: str
    # How long the expression has to hold, in Prometheus's form of durations.
    hold: str
    expression: str
    summary: str
    description: str
    means: str
    steps: tuple[str, ...]
    silent: str

    @property
    def page(self) -> str:
        """The alert's page, relative to the top of a checkout."""
        return f"docs/alerts/{self.name}.md"


@cache
def load() -> tuple[Alert, ...]:
    """Read every alert, in the order of the file. Raises KeyError for one without a key."""
    rows = yaml.safe_load((HERE / "alerts.yaml").read_text(encoding="utf-8"))["alerts"]
    return tuple(
        Alert(
            name=row["name"],
            title=row["title"],
            severity=row["severity"],
            hold=row["for"],
            expression=row["expr"].replace("<files>", FILE_SYSTEMS),
            summary=row["summary"],
            description=row["description"],
            means=row["means"],
            steps=tuple(row["do"]),
            silent=row["silent"],
        )
        for row in rows
    )
