"""Ports and firewall, seen in the plan."""

from __future__ import annotations

import pytest
from plan_inputs import (
    LAB_SETTINGS,
    found,
    lab_facts,
    plan,
)

from kimi_prov.facts.host import read_host
from kimi_prov.planner.service import proxy
from kimi_prov.planner.settings.parsing import parse_settings


@pytest.mark.parametrize("port", [8000, 8001])
def test_a_port_of_another_program_is_named(port: int) -> None:
    facts = lab_facts()
    facts["network"]["listening"] = [
        {"port": port, "address": "0.0.0.0", "process": "nginx", "unit": "nginx.service"}
    ]
    row = found(plan(facts), "port.taken")[0]
    assert row["severity"] == "blocker"
    assert "nginx" in row["observed"]


@pytest.mark.parametrize(
    ("port", "address", "taken"),
    [
        (8000, None, True),
        (8001, None, True),
        (8000, "127.0.0.1", True),
        (8000, "10.93.8.10", True),
        (8000, "203.0.113.9", False),
        (8443, None, False),
    ],
)
def test_a_port_that_a_container_has_by_a_rule_alone(
    port: int, address: str | None, *, taken: bool
) -> None:
    """As containerd's does, and Docker's without its proxy: nobody listens."""
    facts = lab_facts()
    facts["network"]["addresses"] = ["10.93.8.10"]
    row = {"port": port, "address": address, "to": "172.17.0.2:80"}
    facts["firewall"]["redirected"] = [row]
    (verdict,) = found(plan(facts), "port.taken")
    assert (verdict["severity"] == "blocker") is taken
    assert ("172.17.0.2:80" in verdict["observed"]) is taken
    facts["firewall"]["redirected"] = None
    assert found(plan(facts), "port.taken")[0]["severity"] == "pass"


@pytest.mark.parametrize("name", ["ufw", "firewalld"])
def test_the_firewall_goes_through_what_rules_here(name: str) -> None:
    facts = lab_facts()
    facts["firewall"][name] = "active"
    document = plan(facts, allowed_networks=["10.0.0.0/8", "fd00::/8"])
    assert document["firewall"] == {
        "port": 8000,
        "ports": [8000],
        "ipv4": ["10.0.0.0/8"],
        "ipv6": ["fd00::/8"],
        "manager": name,
        "challenge_port": None,
    }


def test_the_page_takes_ports_that_nobody_else_has() -> None:
    facts = lab_facts()
    assert plan(facts)["web"] is None
    page = plan(facts, web_ui=True)["web"]
    assert (page["port"], page["backend_port"], page["api_port"]) == (8443, 8002, 8003)
    assert plan(facts, web_ui=True)["firewall"]["ports"] == [8000, 8443]
    page = plan(facts, web_ui=True, web_port=8002)["web"]
    assert (page["port"], page["backend_port"], page["api_port"]) == (8002, 8003, 8004)


def test_a_port_of_the_page_that_another_holds_is_a_finding() -> None:
    facts = lab_facts()
    facts["network"]["listening"] = [{"port": 8003, "process": "squid", "unit": "squid.service"}]
    assert found(plan(facts), "port.taken")[0]["severity"] == "pass"
    [row] = found(plan(facts, web_ui=True), "port.taken")
    assert row["severity"] == "blocker"
    assert "8003 by squid" in row["observed"]
    assert "kimi_acme_challenge" not in row["fix"]


def test_a_port_of_a_challenge_that_another_holds_is_told_with_the_way_that_takes_none() -> None:
    facts = lab_facts()
    facts["network"]["listening"] = [{"port": 80, "process": "nginx", "unit": "nginx.service"}]
    assert found(plan(facts), "port.taken")[0]["severity"] == "pass"
    wishes = {"tls": "acme", "tls_names": ["kimi.example.com"]}
    [row] = found(plan(facts, **wishes), "port.taken")
    assert row["severity"] == "blocker"
    assert "80 by nginx" in row["observed"]
    assert "kimi_acme_challenge: dns-01" in row["fix"]


def test_no_engine_takes_the_port_of_a_challenge() -> None:
    wishes = {"tls": "acme", "tls_names": ["kimi.example.com"], "port": 79}
    document = plan(lab_facts(), **wishes)
    assert [row["port"] for row in document["proxy"]["backends"]] == [8080]
    assert found(document, "port.taken")[0]["severity"] == "pass"


def test_the_page_s_port_is_not_the_api_s_nor_an_engine_s() -> None:
    for port in (8000, 8001):
        [row] = found(plan(lab_facts(), web_ui=True, web_port=port), "web.port")
        assert row["severity"] == "blocker"
    assert not found(plan(lab_facts(), web_ui=True, web_port=8002), "web.port")


GROUP = {
    "rank": 0,
    "peer_addresses": ["10.0.0.2", "fd00::2"],
    "control_port": 29500,
    "master_port": 29501,
    "first_port": 29510,
    "last_port": 29541,
}


def test_a_head_opens_its_port_to_clients_and_the_group_s_to_its_peers() -> None:
    host, settings = read_host(lab_facts()), parse_settings(LAB_SETTINGS, host="h1")
    alone = proxy.make_firewall_document(host, settings)
    assert proxy.make_firewall_document(host, settings, GROUP) == {
        **alone,
        "peers_ipv4": ["10.0.0.2"],
        "peers_ipv6": ["fd00::2"],
        "peer_ports": ["29500-29501", "29510-29541"],
    }
    rank = proxy.make_firewall_document(host, settings, {**GROUP, "rank": 1})
    assert alone["ports"]
    assert (rank["ports"], rank["challenge_port"]) == ([], None)
