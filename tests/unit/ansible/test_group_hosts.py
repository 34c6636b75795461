"""Which hosts of an inventory serve one model together."""

from __future__ import annotations

from typing import Any

import pytest

from kimi_prov.ansible.group_hosts import find_group, find_refused_peers, gather_hosts
from kimi_prov.errors import UserError


def variables(host: str, **groups: list[str]) -> dict[str, Any]:
    every = list(dict.fromkeys(name for hosts in groups.values() for name in hosts))
    return {
        "inventory_hostname": host,
        "groups": {"all": every, "ungrouped": [], "kimi": every, **groups},
    }


def test_all_hosts_of_kimi_are_one_group_without_others() -> None:
    assert find_group(variables("b", kimi=["a", "b"]), 2) == ("kimi", ["a", "b"])


def test_a_lone_child_group_gives_its_name() -> None:
    assert find_group(variables("b", pair=["a", "b"]), 2) == ("pair", ["a", "b"])


def test_a_child_group_of_that_size_is_one_in_the_inventory_s_order() -> None:
    given = variables("c", first=["b", "a"], second=["d", "c"])
    assert find_group(given, 2) == ("second", ["d", "c"])


def test_a_second_name_of_the_same_hosts_does_no_harm() -> None:
    given = variables("a", pair=["a", "b"], rack=["a", "b"], other=["c", "d"])
    assert find_group(given, 2)[1] == ["a", "b"]


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({"kimi": ["a", "b", "c"]}, "kimi has 3"),
        ({"x": ["a", "b", "c"], "y": ["d"]}, "x has 3"),
        ({"x": ["a", "b"], "y": ["a", "c"]}, "several groups of 2 hosts: x, y"),
    ],
)
def test_a_group_that_cannot_be_told_is_refused(groups: dict[str, list[str]], said: str) -> None:
    with pytest.raises(UserError) as error:
        find_group(variables("a", **groups), 2)
    assert said in error.value.message
    assert "host a" in error.value.message
    assert error.value.fix


def test_a_host_that_was_not_described_is_named() -> None:
    known = {"a": {"kimi_facts": {}, "kimi_shared_settings": {"model": "x"}}, "b": {}}
    given = variables("a", kimi=["a", "b"]) | {"hostvars": known}
    for play, said in ((["a"], "left out by --limit"), (["a", "b"], "not reached, or refused")):
        with pytest.raises(UserError) as error:
            gather_hosts(("kimi", ["a", "b"]), given | {"ansible_play_hosts_all": play})
        assert f"b of group kimi was not described: {said}" in error.value.message


def test_a_host_waits_where_another_of_its_group_is_refused() -> None:
    group = {"members": [{"host": "a"}, {"host": "b"}, {"host": "c"}]}
    blocker = {"id": "memory.host", "severity": "blocker"}
    known = {
        "b": {"kimi_plan": {"findings": [blocker], "driver": {"action": "none"}}},
        "c": {"kimi_plan": {"findings": [], "driver": {"action": "none"}}},
    }
    assert find_refused_peers(group, "a", known) == ["b is refused (memory.host)"]
    assert find_refused_peers(group, "a", known | {"c": {}})[1] == "c has no plan"
