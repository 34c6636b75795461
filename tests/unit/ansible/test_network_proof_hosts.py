"""When the hosts of a group can measure their network at the same time, and when they cannot."""

from __future__ import annotations

from kimi_prov.ansible.plugins.action.kimi_network_proof import obstacle


def test_all_hosts_of_a_group_measure_at_once_or_none_does() -> None:
    pair = ["alpha", "beta"]
    assert obstacle(pair, ["alpha", "beta", "gamma", "delta"], 5) == ""
    assert obstacle(pair, ["alpha"], 5) == "beta left out by --limit, or not reached"
    assert obstacle(pair, pair, 1) == "--forks 1 is less than the 2 hosts"
