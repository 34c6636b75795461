"""Which hosts of an inventory fetch the same weights."""

from __future__ import annotations

from typing import Any

from kimi_prov.ansible import weights_hosts
from kimi_prov.planner.hosts.neighbours import Neighbour

MODEL = {"kimi_model": "kimi-k2.5"}


def variables(host: str, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    hostvars = {name: {**MODEL, **own} for name, own in known.items()}
    return {
        "inventory_hostname": host,
        "groups": {"all": [*known, "gw"], "kimi": list(known), "kimi_gateway": ["gw"]},
        "hostvars": hostvars,
        **hostvars[host],
    }


def names(host: str, known: dict[str, dict[str, Any]]) -> list[str]:
    return [row.host for row in weights_hosts.list_neighbours(variables(host, known))]


def test_hosts_of_one_source_are_near_each_other() -> None:
    known = {
        "a": {"ansible_host": "10.0.0.1"},
        "b": {"ansible_host": "192.0.2.2", "kimi_group_address": "10.1.0.2"},
        "c": {},
    }
    assert weights_hosts.list_neighbours(variables("b", known)) == [
        Neighbour("a", "10.0.0.1"),
        Neighbour("b", "10.1.0.2"),
        Neighbour("c", "c"),
    ]


def test_other_weights_are_not_near() -> None:
    other = [
        {"kimi_model": "kimi-k2"},
        {"kimi_weights_source": "hf://moonshotai/Kimi-K2.5@other"},
        {"kimi_weights_manifest": "other.json"},
        {"kimi_weights_format": "fp8"},
        {"kimi_weights_port": 29700},
        {"kimi_engine_stand_in": "file:///srv/small"},
    ]
    known = {"a": {}, **{f"o{n}": row for n, row in enumerate(other)}, "z": {}}
    assert names("a", known) == names("z", known) == ["a", "z"]
    assert names("o1", known) == ["o1"]


def test_a_host_that_asks_the_source_alone_is_no_neighbour() -> None:
    known: dict[str, dict[str, Any]] = {"a": {}, "b": {"kimi_weights_from": "source"}, "c": {}}
    assert names("c", known) == ["a", "c"]


def test_what_a_template_comes_to_is_compared() -> None:
    filled = {"kimi_weights_manifest": "/site/manifest.json"}
    given = variables("b", {"a": filled, "b": filled})
    given["kimi_weights_manifest"] = "{{ inventory_dir }}/manifest.json"
    assert [row.host for row in weights_hosts.list_neighbours(given)] == ["a", "b"]
