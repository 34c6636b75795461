"""The plan of a gateway, and of the hosts behind one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import closed_form
import jsonschema
import pytest
from plan_inputs import LAB_SETTINGS, found, lab_facts

from kimi_prov.catalog import loader
from kimi_prov.contract import gateways as contract
from kimi_prov.planner import gateways
from kimi_prov.planner.gateways import GatewayAddress, ServingHost
from kimi_prov.planner.plan import make_plan as host_plan
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = [ServingHost("gpu1", "10.0.9.11", 8000, 32), ServingHost("gpu.2", "10.0.9.12", 8000, 8)]
ONE = [GatewayAddress("gw1", "10.0.9.1")]
TWO = [*ONE, GatewayAddress("gw2", "10.0.9.2")]


def facts() -> dict[str, Any]:
    made = lab_facts()
    made["network"]["addresses"] = ["10.0.9.1"]
    made["network"]["interfaces"] = [{"name": "eth0", "addresses": ["10.0.9.1/24"]}]
    return made


def planned(peers: list[GatewayAddress] = ONE, **wishes: object) -> dict[str, Any]:
    settings = parse_settings({**LAB_SETTINGS, **wishes}, host="gw1")
    return gateways.make_plan(facts(), settings, loader.load_catalogue(), HOSTS, peers)


def behind(peers: list[GatewayAddress], **wishes: object) -> dict[str, Any]:
    settings = parse_settings({**LAB_SETTINGS, **wishes}, host="gpu1")
    return host_plan(lab_facts(), settings, loader.load_catalogue(), before=peers)


def test_a_gateway_sends_to_each_host_and_asks_for_no_engine() -> None:
    made = planned()
    assert contract.is_gateway(made)
    assert made["gateway"]["hosts"] == [
        {"host": "gpu1", "server": "gpu1", "address": "10.0.9.11", "port": 8000, "requests": 32},
        {"host": "gpu.2", "server": "gpu.2", "address": "10.0.9.12", "port": 8000, "requests": 8},
    ]
    assert made["instances"] == []
    assert not {"numactl", "python3-venv"} & set(made["packages"])
    assert "keepalived" not in made["packages"]
    assert made["firewall"]["ports"] == [8000]


def test_two_gateways_share_an_address_of_their_network() -> None:
    made = planned(TWO, kimi_gateway_address="10.0.9.100")
    assert made["gateway"]["shared"] == {
        "interface": "eth0",
        "own": "10.0.9.1",
        "router": int.from_bytes([10, 0, 9, 100], "big") % 255 + 1,
    }
    assert [row["host"] for row in made["gateway"]["peers"]] == ["gw2"]
    assert made["firewall"]["gateways"]["ipv4"] == ["10.0.9.2/32"]
    assert "keepalived" in made["packages"]
    # One certificate for both: a client does not see which of them answers.
    assert {"10.0.9.100", "10.0.9.1", "10.0.9.2"} <= set(made["proxy"]["tls"]["names"])


@pytest.mark.parametrize("address", ["10.9.9.100", "gateway.example.com"])
def test_an_address_of_another_network_is_refused(address: str) -> None:
    (row,) = found(planned(TWO, kimi_gateway_address=address), "gateway.address")
    assert row["severity"] == "blocker"
    assert address in row["observed"]


def test_two_gateways_without_a_shared_address_are_told() -> None:
    (row,) = found(planned(TWO), "gateway.address")
    assert row["severity"] == "info"
    assert found(planned(), "gateway.address") == []


def test_the_first_gateway_has_the_keys_of_all() -> None:
    first = planned(TWO)
    second = gateways.make_plan(
        facts(), parse_settings(LAB_SETTINGS, host="gw2"), loader.load_catalogue(), HOSTS, TWO
    )
    assert contract.find_key_gateway(first) is None
    assert contract.find_key_gateway(second) == "gw1"
    assert contract.find_key_gateway(behind(ONE)) == "gw1"


def test_behind_a_gateway_nobody_else_knocks_and_the_host_makes_its_own_certificate() -> None:
    wishes = {
        "kimi_allowed_networks": ["0.0.0.0/0"],
        "kimi_tls": "acme",
        "kimi_acme_contact": "ops@example.com",
        "kimi_tls_names": ["kimi.example.com"],
    }
    made = behind(TWO, **wishes)
    assert made["proxy"]["allowed_networks"] == ["10.0.9.1/32", "10.0.9.2/32"]
    assert made["firewall"]["ipv4"] == ["10.0.9.1/32", "10.0.9.2/32"]
    assert made["proxy"]["tls"]["mode"] == "self-signed"
    assert [row["key_name"] for row in made["gateways"]] == ["gateway.gw1", "gateway.gw2"]


def test_without_gateways_the_plan_says_nothing_of_them() -> None:
    assert "gateways" not in behind([])


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ({"kimi_concurrency": 16}, 32),
        ({"kimi_concurrency": 16, "kimi_instances": 2}, 64),
        ({"kimi_concurrency": 1}, 8),
        ({"kimi_concurrency": 1, "kimi_gateway_requests": 3}, 3),
    ],
)
def test_how_many_requests_a_host_takes_at_once(wishes: dict[str, int], expected: int) -> None:
    assert (
        gateways.count_requests(parse_settings({**LAB_SETTINGS, **wishes}, host="gpu1")) == expected
    )


def test_a_gateway_shows_metrics_where_they_are_wished_for() -> None:
    assert planned()["metrics"] is None
    made = planned(kimi_metrics=True, kimi_metrics_networks=["10.0.9.5/32"])
    assert made["metrics"]["port"] == 9443
    assert made["firewall"]["metrics"]["ipv4"] == ["10.0.9.5/32"]
    assert made["firewall"]["ports"] == [8000, 9443]
    assert "prometheus-node-exporter" in made["packages"]
    # It watches nobody by itself: hosts of kimi_monitor watch it.
    assert planned(kimi_metrics=True, kimi_monitor_local=True)["metrics"]["monitor_local"] is False


def test_a_plan_behind_gateways_is_one_of_the_schema() -> None:
    made = behind(TWO)
    closed_form.validate(made, "plan")
    made["gateways"][0]["key_name"] = "operator"
    with pytest.raises(jsonschema.ValidationError):
        closed_form.validate(made, "plan")


def test_a_gateway_s_plan_has_no_key_that_is_not_declared(tmp_path: Path) -> None:
    (tmp_path / "admin").touch()
    whole = {"kimi_metrics": True, "kimi_web_admin_file": str(tmp_path / "admin")}
    for made in (planned(), of("gw1", **whole), of("gw2", **whole)):
        closed_form.validate(made, "gateway-plan")


def of(host: str, **wishes: object) -> dict[str, Any]:
    """The plan of one of two gateways, with a page."""
    settings = parse_settings({**LAB_SETTINGS, "kimi_web_ui": True, **wishes}, host=host)
    return gateways.make_plan(facts(), settings, loader.load_catalogue(), HOSTS, TWO)


def test_the_first_gateway_has_the_page_and_asks_through_its_own_proxy(tmp_path: Path) -> None:
    admin = tmp_path / "admin"
    admin.touch()
    made = of("gw1", kimi_web_admin_file=str(admin))
    page = made["web"]
    assert page["environment"]["OPENAI_API_BASE_URL"] == f"http://127.0.0.1:{page['api_port']}/v1"
    assert page["gateways"] == ["10.0.9.2/32"]
    assert made["gateway"]["page"] is None
    assert made["firewall"]["ports"] == [8000, 8443]
    assert made["firewall"]["gateways"]["page_port"] == 8443
    assert {"python3-venv"} <= set(made["packages"])
    assert made["control"]["web_admin_file"] == str(admin)
    assert of("gw2", kimi_web_admin_file=str(admin))["control"]["web_admin_file"] is None
    assert made["installation"]["uv_dir"].startswith("/srv/kimi/")
    assert found(made, "web.licence")
    assert {8443, page["backend_port"], page["api_port"]} <= {
        int(text) for text in found(made, "port.taken")[0]["observed"].split(", ")
    }


def test_the_other_gateway_hands_on_to_the_first_and_installs_nothing() -> None:
    made = of("gw2")
    assert made["web"] is None
    assert made["gateway"]["page"] == {
        "port": 8443,
        "first": {"host": "gw1", "server": "gw1", "address": "10.0.9.1", "port": 8443},
        "name": contract.WEB_UI_NAME,
    }
    assert made["firewall"]["ports"] == [8000, 8443]
    assert made["firewall"]["gateways"]["page_port"] is None
    assert "installation" not in made
    assert "python3-venv" not in made["packages"]


def test_one_gateway_alone_hands_its_page_to_nobody() -> None:
    made = planned(kimi_web_ui=True)
    assert made["web"]["gateways"] == []
    assert "gateways" not in made["firewall"]


def test_without_a_wish_no_gateway_has_a_page() -> None:
    made = planned(TWO)
    assert (made["web"], made["gateway"]["page"]) == (None, None)
    assert made["firewall"]["ports"] == [8000]


def test_a_machine_behind_gateways_has_no_page_and_says_who_has() -> None:
    made = behind(TWO, kimi_web_ui=True)
    assert made["web"] is None
    assert made["firewall"]["ports"] == [8000]
    (row,) = found(made, "web.gateway")
    assert "gw1 has it" in row["required"]
    assert found(behind(TWO), "web.gateway") == []
    assert found(behind([], kimi_web_ui=True), "web.gateway") == []


def test_what_stands_in_for_an_engine_is_behind_gateways_too() -> None:
    made = behind(ONE, kimi_engine_stand_in="hf://x/y", kimi_web_ui=True)
    assert made["stand_in"]
    assert [row["host"] for row in made["gateways"]] == ["gw1"]
    assert found(made, "web.gateway")


@pytest.mark.parametrize(("memory", "told"), [(1 << 30, True), (2_000_000_000, False), (0, False)])
def test_too_little_memory_for_a_page_is_told(memory: int, told: bool) -> None:
    described = facts()
    described["memory"] = {"total_bytes": memory}
    settings = parse_settings({**LAB_SETTINGS, "kimi_web_ui": True}, host="gw1")
    made = gateways.make_plan(described, settings, loader.load_catalogue(), HOSTS, ONE)
    assert bool(found(made, "web.memory")) is told


def test_too_little_room_on_the_disk_is_refused_until_the_page_is_there() -> None:
    described = facts()
    for row in described["filesystems"]:
        row["free_bytes"] = 1_500_000_000
    settings = parse_settings({**LAB_SETTINGS, "kimi_web_ui": True}, host="gw1")

    def room() -> str:
        made = gateways.make_plan(described, settings, loader.load_catalogue(), HOSTS, ONE)
        (row,) = found(made, "disk.room")
        described["kimi"]["web_envs"] = [made["web"]["env_name"]]
        return str(row["severity"])

    assert [room(), room()] == ["blocker", "pass"]


def test_python_is_brought_where_nothing_is_pinned_for_the_gateway_s_own() -> None:
    described = facts()
    described["python"] |= {"path": "/usr/bin/python3", "version": "3.13.5", "others": []}
    settings = parse_settings({**LAB_SETTINGS, "kimi_web_ui": True}, host="gw1")
    made = gateways.make_plan(described, settings, loader.load_catalogue(), HOSTS, ONE)
    assert found(made, "web.lock") == []
    assert made["installation"]["python"]["name"] in made["web"]["python"]
    assert "python3-venv" in made["packages"]


def test_no_python_that_the_page_is_pinned_for_is_refused() -> None:
    described = facts()
    described["python"] |= {"path": "/usr/bin/python3", "version": "3.9.2", "others": []}
    described["host"]["arch"] = "aarch64"
    settings = parse_settings({**LAB_SETTINGS, "kimi_web_ui": True}, host="gw1")
    made = gateways.make_plan(described, settings, loader.load_catalogue(), HOSTS, ONE)
    (row,) = found(made, "web.lock")
    assert row["severity"] == "blocker"
    assert "aarch64" in row["observed"]


@pytest.mark.parametrize("port", [8000, 29500])
def test_a_port_that_a_gateway_takes_is_none_of_the_page(port: int) -> None:
    for host in ("gw1", "gw2"):
        rows = found(of(host, kimi_web_port=port), "web.port")
        assert rows
        assert str(port) in rows[0]["observed"]
        assert len(rows) == 1
