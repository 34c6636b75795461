"""When the hosts of a group can measure their network at the same time, and when they cannot."""

from __future__ import annotations

from kimi_prov.ansible.plugins.action.kimi_network_proof import find_obstacle


def test_all_hosts_of_a_group_measure_at_once_or_none_does() -> None:
    pair = ["alpha", "beta"]
    assert find_obstacle(pair, ["alpha", "beta", "gamma", "delta"], 5) == ""
    assert find_obstacle(pair, ["alpha"], 5) == "beta left out by --limit, or not reached"
    assert find_obstacle(pair, pair, 1) == "--forks 1 is less than the 2 hosts"
