"""Findings about the metrics of a machine."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

_OWN = "the proxy shows metrics on kimi_metrics_port, and a host that watches reads them there"

DEFINITIONS = (
    Definition(
        "metrics.closed",
        title="Nobody else may read the metrics",
        severities=("info",),
        source="the packet filter lets kimi_metrics_networks alone reach kimi_metrics_port",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "metrics.nothing_to_watch",
        title="The machine shall watch itself and shows no metrics",
        severities=("blocker",),
        source=_OWN,
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "metrics.port",
        title="The port of the metrics is the API's, the page's or an engine's",
        severities=("blocker",),
        source=_OWN,
        remedy="setting",
        concerns="deployment",
    ),
)
