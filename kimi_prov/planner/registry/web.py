"""Findings about the web UI."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

_ROW = "the page's row in kimi_prov/catalog/web.yaml"

DEFINITIONS = (
    Definition(
        "web.gateway",
        title="The page runs on the first gateway",
        severities=("info",),
        source="one database of accounts and chats, for whichever machine answers",
        remedy="none",
        concerns="deployment",
    ),
    Definition(
        "web.licence",
        title="The page comes under a licence of its own",
        severities=("info",),
        source=_ROW,
        remedy="none",
        concerns="deployment",
        own_source=True,
    ),
    Definition(
        "web.lock",
        title="No lock pins the packages of Open WebUI {version} for this Python",
        severities=("blocker",),
        source=_ROW,
        remedy="catalogue",
        concerns="deployment",
    ),
    Definition(
        "web.memory",
        title="A gateway has little memory for the page",
        severities=("warning",),
        source=_ROW,
        remedy="hardware",
        concerns="purchase",
    ),
    Definition(
        "web.port",
        title="The page's port is the API's or an engine's",
        severities=("blocker",),
        source="the proxy listens on kimi_port, the engines on the ports after it",
        remedy="setting",
        concerns="deployment",
    ),
)
