"""Findings about what clients see: the context, the port and the firewall."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

_CACHE = "MLA keeps layers x (kv_lora + rope) x 2 bytes for each token on every rank"

DEFINITIONS = (
    Definition(
        "context.concurrency",
        title="Not every request can use the whole context at once; some will wait",
        severities=("info",),
        source=_CACHE,
        remedy="none",
    ),
    Definition(
        "context.memory",
        title="The cache cannot hold one conversation of that length",
        severities=("blocker",),
        source=_CACHE,
        remedy="setting",
    ),
    Definition(
        "context.model",
        title="{model} was not made for so long a context",
        severities=("blocker",),
        source="the model's row in kimi_prov/catalog/models.yaml",
        remedy="setting",
        own_source=True,
    ),
    Definition(
        "firewall.closed",
        title="Nobody but the machine itself may reach the port",
        severities=("info",),
        source="an open port to everybody is never a default",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "firewall.dropped_elsewhere",
        title="Another firewall rule keeps clients from the port",
        severities=("warning",),
        source="nft list ruleset",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "port.taken",
        title="A port that is needed is taken by another program",
        severities=("blocker", "pass"),
        source="the proxy listens on kimi_port, the engines on the ports after it",
        remedy="process",
        concerns="deployment",
        titles={"pass": "The ports are free, or held by our own units"},
        moves=True,
    ),
    Definition(
        "serve.kept",
        title="The machine keeps what it serves by: a new one would be planned otherwise",
        severities=("info",),
        source="a machine that serves is not changed unasked",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "serve.restart",
        title="The engine of instance {index} restarts: {reasons}",
        severities=("info",),
        source="the unit that it was started with, against the one that is planned",
        remedy="none",
        concerns="deployment",
    ),
)
