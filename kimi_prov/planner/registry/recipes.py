"""Findings about layouts over several hosts that were published."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

DEFINITIONS = (
    Definition(
        "group.proven",
        title="A public source says that this layout over several hosts ran",
        severities=("info",),
        source="groups.yaml of the catalogue",
        remedy="none",
        own_source=True,
    ),
    Definition(
        "group.unproven",
        title="Nobody is known to have run this layout over several hosts",
        severities=("warning",),
        source="groups.yaml of the catalogue: no row of this model, format, GPU and layout",
        remedy="depends",
    ),
)
