"""Which hosts of an inventory are gateways, and which serve behind them."""

from __future__ import annotations

from typing import Any

import pytest

from kimi_prov.ansible import gateway_hosts
from kimi_prov.errors import UserError
from kimi_prov.planner.gateways import GatewayAddress, ServingHost

MODEL = {"kimi_model": "kimi-k2.5"}


def variables(host: str, known: dict[str, dict[str, Any]], **groups: list[str]) -> dict[str, Any]:
    every = list(dict.fromkeys(name for hosts in groups.values() for name in hosts))
    hostvars = {name: {**MODEL, "inventory_dir": "/", **known.get(name, {})} for name in every}
    return {
        "inventory_hostname": host,
        "groups": {"all": every, "ungrouped": [], **groups},
        "hostvars": hostvars,
    }


def test_hosts_are_told_by_the_inventory_alone() -> None:
    known = {
        "gpu1": {"ansible_host": "10.0.0.1", "kimi_concurrency": 16},
        "gpu2": {"kimi_port": 9000, "kimi_gateway_requests": 5},
        "gw": {"ansible_host": "10.0.0.9"},
    }
    given = variables("gw", known, kimi=["gpu1", "gpu2"], kimi_gateway=["gw"])
    assert gateway_hosts.is_gateway(given)
    assert gateway_hosts.list_gateways(given) == [GatewayAddress("gw", "10.0.0.9")]
    assert gateway_hosts.list_served_hosts(given) == [
        ServingHost("gpu1", "10.0.0.1", 8000, 32),
        ServingHost("gpu2", "gpu2", 9000, 5),
    ]


def test_of_hosts_that_serve_one_model_together_the_head_answers() -> None:
    pair = {"kimi_hosts_per_model": 2}
    known = dict.fromkeys(("a", "b", "c", "d"), pair)
    given = variables(
        "gw", known, kimi=["a", "b", "c", "d"], one=["a", "b"], two=["c", "d"], kimi_gateway=["gw"]
    )
    assert [row.host for row in gateway_hosts.list_served_hosts(given)] == ["a", "c"]


def test_a_gateway_takes_from_its_hosts_what_it_is_not_told() -> None:
    known = {"gpu1": {"kimi_served_names": ["kimi"]}}
    given = variables("gw", known, kimi=["gpu1"], kimi_gateway=["gw"])
    assert gateway_hosts.collect_host_settings(given) == {**MODEL, "kimi_served_names": ["kimi"]}
    assert gateway_hosts.collect_host_settings({**given, "kimi_served_names": ["own"]}) == MODEL


def test_a_gateway_takes_the_page_that_its_hosts_wish_for() -> None:
    wishes = {"kimi_web_ui": True, "kimi_web_port": 443}
    given = variables("gw", {"gpu1": wishes}, kimi=["gpu1"], kimi_gateway=["gw"])
    assert gateway_hosts.collect_host_settings(given) == {**MODEL, **wishes}
    assert (
        gateway_hosts.collect_host_settings({**given, "kimi_web_ui": False})["kimi_web_port"] == 443
    )


def test_without_gateways_there_is_none() -> None:
    given = variables("gpu1", {}, kimi=["gpu1"])
    assert not gateway_hosts.is_gateway(given)
    assert gateway_hosts.list_gateways(given) == []


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({"kimi": ["gw", "a"], "kimi_gateway": ["gw"]}, "in kimi and in kimi_gateway"),
        ({"kimi": ["a"], "kimi_gateway": ["gw", "x", "y"]}, "has 3 hosts: gw, x, y"),
    ],
)
def test_what_cannot_be_a_gateway_is_refused(groups: dict[str, list[str]], said: str) -> None:
    with pytest.raises(UserError) as error:
        gateway_hosts.is_gateway(variables("gw", {}, **groups))
    assert said in error.value.message
    assert error.value.fix
