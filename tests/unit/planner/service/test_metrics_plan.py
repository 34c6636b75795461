"""Metrics in the plan."""

from __future__ import annotations

from plan_inputs import found, lab_facts, plan

from kimi_prov.on_host.endpoint import firewall


def test_without_a_wish_there_are_none() -> None:
    document = plan(lab_facts())
    assert document["metrics"] is None
    assert "metrics" not in document["firewall"]
    assert "prometheus-node-exporter" not in document["packages"]
    assert not [row for row in document["findings"] if row["id"].startswith("metrics.")]


def test_metrics_have_a_port_and_networks_of_their_own() -> None:
    document = plan(lab_facts(), metrics=True, metrics_networks=["10.9.0.0/16", "fd00:9::/64"])
    assert document["metrics"]["port"] == 9443
    assert document["firewall"]["ports"] == [8000, 9443]
    guarded = document["firewall"]["metrics"]
    assert (guarded["ipv4"], guarded["ipv6"]) == (["10.9.0.0/16"], ["fd00:9::/64"])
    assert "prometheus-node-exporter" in document["packages"]


def test_no_port_is_given_twice() -> None:
    document = plan(lab_facts(), metrics=True, web_ui=True)
    web, metrics = document["web"], document["metrics"]
    ports = [8000, *(row["port"] for row in document["proxy"]["backends"])]
    ports += [web["port"], web["backend_port"], web["api_port"]]
    ports += [metrics["port"], metrics["node_port"]]
    assert len(ports) == len(set(ports))
    # An exporter that moved would be a restart for nothing.
    assert plan(lab_facts(), metrics=True)["metrics"]["node_port"] == metrics["node_port"]


def test_a_port_of_something_else_is_refused() -> None:
    for port in (8000, 8001, 8443):
        document = plan(lab_facts(), metrics=True, web_ui=True, metrics_port=port)
        assert found(document, "metrics.port")[0]["severity"] == "blocker"


def test_a_port_that_another_program_holds_is_told() -> None:
    facts = lab_facts()
    facts["network"]["listening"] = [{"port": 9443, "process": "other", "unit": "other.service"}]
    told = found(plan(facts, metrics=True), "port.taken")[0]
    assert (told["severity"], "9443 by other" in told["observed"]) == ("blocker", True)
    assert "kimi_metrics_port" in told["fix"]
    assert found(plan(facts), "port.taken")[0]["severity"] == "pass"


def test_closed_metrics_and_a_watch_without_any_are_told() -> None:
    assert found(plan(lab_facts(), metrics=True), "metrics.closed")[0]["severity"] == "info"
    told = found(plan(lab_facts(), monitor_local=True), "metrics.nothing_to_watch")[0]
    assert told["severity"] == "blocker"


def test_ufw_and_firewalld_get_the_port_for_its_own_networks_alone() -> None:
    settings = plan(
        lab_facts(), metrics=True, allowed_networks=["10.0.0.0/8"], metrics_networks=["10.9.0.5/32"]
    )["firewall"]
    rules = firewall.build_rules({**settings, "manager": "ufw"}, [])
    assert {(row["from"], row["port"]) for row in rules} == {
        ("10.0.0.0/8", "8000"),
        ("10.9.0.5/32", "9443"),
    }
