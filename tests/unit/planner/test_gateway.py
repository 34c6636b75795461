"""Ports and firewall, seen in the plan."""

from __future__ import annotations

import pytest
from plan_inputs import (
    found,
    lab_facts,
    plan,
)


@pytest.mark.parametrize("port", [8000, 8001])
def test_a_port_of_another_program_is_named(port: int) -> None:
    facts = lab_facts()
    facts["network"]["listening"] = [
        {"port": port, "address": "0.0.0.0", "process": "nginx", "unit": "nginx.service"}
    ]
    row = found(plan(facts), "port.taken")[0]
    assert row["severity"] == "blocker"
    assert "nginx" in row["observed"]


@pytest.mark.parametrize("name", ["ufw", "firewalld"])
def test_the_firewall_goes_through_what_rules_here(name: str) -> None:
    facts = lab_facts()
    facts["firewall"][name] = "active"
    document = plan(facts, allowed_networks=["10.0.0.0/8", "fd00::/8"])
    assert document["firewall"] == {
        "port": 8000,
        "ipv4": ["10.0.0.0/8"],
        "ipv6": ["fd00::/8"],
        "manager": name,
    }
