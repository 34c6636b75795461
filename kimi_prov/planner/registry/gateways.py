"""Findings of gateways, which answer for several machines."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

DEFINITIONS = (
    Definition(
        "gateway.address",
        title="The gateways cannot share that address",
        severities=("blocker", "info"),
        titles={"info": "Clients have to know each gateway"},
        source="VRRP (RFC 5798) moves an address between hosts of one network",
        remedy="setting",
        concerns="deployment",
    ),
)
