from __future__ import annotations

import pytest

from kimi_prov.on_host.endpoint import firewall

WISH = {"ports": [8000], "ipv4": ["10.0.0.0/8", "192.0.2.7/32"], "ipv6": ["fd00::/8"]}


def chain(family, table, policy, hook="input"):
    entry = {"family": family, "table": table, "name": "c", "hook": hook, "type": "filter"}
    return {"chain": {**entry, "policy": policy, "prio": 0}}


def rule(family, table, right, verdict, protocol="tcp"):
    left = {"payload": {"protocol": protocol, "field": "dport"}}
    match = {"match": {"op": "==", "left": left, "right": right}}
    expression = [match, {"counter": None}, {verdict: None}]
    return {"rule": {"family": family, "table": table, "chain": "c", "expr": expression}}


@pytest.mark.parametrize(
    ("rules", "manager", "found"),
    [
        ([chain("inet", "filter", "accept")], "nftables", 0),
        ([chain("inet", "filter", "drop")], "nftables", 1),
        ([chain("inet", "filter", "drop", hook="forward")], "nftables", 0),
        ([chain("inet", "filter", "drop"), rule("inet", "filter", 8000, "accept")], "nftables", 0),
        (
            [chain("inet", "f", "drop"), rule("inet", "f", {"set": [22, 8000]}, "accept")],
            "nftables",
            0,
        ),
        (
            [chain("inet", "f", "drop"), rule("inet", "f", {"range": [1, 9]}, "accept")],
            "nftables",
            1,
        ),
        ([chain("inet", "f", "drop"), rule("inet", "f", 8000, "accept", "udp")], "nftables", 1),
        ([rule("inet", "other", {"range": [7000, 9000]}, "reject")], "nftables", 1),
        ([rule("inet", "kimi", 8000, "drop")], "nftables", 0),
        ([chain("ip", "filter", "drop")], "ufw", 0),
        ([chain("ip", "filter", "drop")], "nftables", 1),
        ([chain("inet", "firewalld", "drop")], "firewalld", 0),
    ],
)
def test_what_others_drop_on_the_port_is_found(rules, manager, found):
    assert len(firewall.find_drops({"nftables": rules}, 8000, manager)) == found


def test_each_manager_gets_its_own_form_of_rule():
    assert firewall.build_rules({**WISH, "manager": "nftables"}, []) == []
    ufw = firewall.build_rules({**WISH, "manager": "ufw"}, [])
    assert [one["from"] for one in ufw] == ["10.0.0.0/8", "192.0.2.7/32", "fd00::/8"]
    rich = firewall.build_rules({**WISH, "manager": "firewalld"}, ["public"])
    assert rich[2]["rule"] == (
        'rule family="ipv6" source address="fd00::/8" port port="8000" protocol="tcp" accept'
    )


def test_each_manager_lets_port_80_through_to_our_table_which_opens_it_for_an_order():
    """Without IPv6 in ufw there is no rule for it, as for the port itself."""
    wish = {**WISH, "challenge_port": 80, "ipv4": ["10.0.0.0/8"], "ipv6": []}
    ufw = firewall.build_rules({**wish, "manager": "ufw"}, [])
    assert [(one["from"], one["port"]) for one in ufw] == [
        ("10.0.0.0/8", "8000"),
        ("0.0.0.0/0", "80"),
        ("::/0", "80"),
    ]
    four = firewall.build_rules({**wish, "manager": "ufw", "knows_ipv6": False}, [])
    assert "::/0" not in [one["from"] for one in four]
    rich = firewall.build_rules({**wish, "manager": "firewalld"}, ["public"])
    assert 'address="0.0.0.0/0" port port="80"' in rich[1]["rule"]
    assert firewall.build_rules({**wish, "manager": "nftables"}, []) == []


GROUP = {
    "ports": [],
    "ipv4": [],
    "ipv6": [],
    "peers_ipv4": ["10.0.0.2"],
    "peers_ipv6": ["fd00::2"],
    "peer_ports": ["29500-29501", "29541"],
}


def test_each_manager_lets_the_other_members_of_a_group_through_by_address():
    ufw = firewall.build_rules({**GROUP, "manager": "ufw"}, [])
    assert [(one["from"], one["port"]) for one in ufw] == [
        ("10.0.0.2", "29500:29501"),
        ("fd00::2", "29500:29501"),
        ("10.0.0.2", "29541"),
        ("fd00::2", "29541"),
    ]
    assert firewall.build_ufw_pattern("10.0.0.2", "29500:29501").match(
        "29500:29501/tcp            ALLOW       10.0.0.2                   # kimi-prov"
    )
    rich = firewall.build_rules({**GROUP, "manager": "firewalld"}, ["public"])
    assert rich[1]["rule"] == (
        'rule family="ipv6" source address="fd00::2" port port="29500-29501" protocol="tcp" accept'
    )


def test_a_manager_lets_peers_reach_the_ports_that_the_kernel_gives_to_gloo_and_nccl():
    found = firewall.add_ephemeral_ports(GROUP)["peer_ports"]
    assert found[:2] == GROUP["peer_ports"]
    low, high = found[2].split("-")
    assert 1024 <= int(low) < int(high) <= 65535
    assert firewall.add_ephemeral_ports(WISH) == WISH, "no group"


@pytest.mark.parametrize(
    ("network", "line", "comment"),
    [
        ("10.0.0.0/8", "8000/tcp  ALLOW   10.0.0.0/8   # kimi-prov", "kimi-prov"),
        ("192.0.2.7/32", "8000/tcp  ALLOW IN   192.0.2.7", None),
        ("0.0.0.0/0", "8000/tcp  ALLOW  Anywhere  # kimi-prov", "kimi-prov"),
        ("::/0", "8000/tcp (v6)  ALLOW  Anywhere (v6)  # mine", "mine"),
    ],
)
def test_ufw_writes_networks_its_own_way(network, line, comment):
    assert firewall.build_ufw_pattern(network, "8000").match(line).group("comment") == comment


def test_another_port_or_network_is_not_taken_for_ours():
    pattern = firewall.build_ufw_pattern("10.0.0.0/8", "8000")
    assert not pattern.match("18000/tcp  ALLOW  10.0.0.0/8")
    assert not pattern.match("8000/tcp  DENY  10.0.0.0/8")
    assert not firewall.build_ufw_pattern("0.0.0.0/0", "8000").match(
        "8000/tcp (v6) ALLOW Anywhere (v6)"
    )


NEAR = {"port": 29600, "ipv4": ["10.0.0.2"], "ipv6": ["fd00::2"]}


def test_each_manager_lets_neighbours_reach_the_port_of_weights():
    wish = {**WISH, "ipv4": [], "ipv6": [], "neighbours": NEAR}
    ufw = firewall.build_rules({**wish, "manager": "ufw"}, [])
    assert [(one["from"], one["port"]) for one in ufw] == [
        ("10.0.0.2", "29600"),
        ("fd00::2", "29600"),
    ]
    rich = firewall.build_rules({**wish, "manager": "firewalld"}, ["public"])
    assert 'address="10.0.0.2" port port="29600"' in rich[0]["rule"]


def test_each_manager_lets_the_other_gateway_reach_its_ports_and_the_page():
    near = {"ipv4": ["10.0.0.2/32"], "ipv6": [], "port": 29500, "page_port": 8443}
    wish = {**WISH, "ipv4": [], "ipv6": [], "gateways": near}
    ufw = firewall.build_rules({**wish, "manager": "ufw"}, [])
    assert [(one["from"], one.get("port") or one["protocol"]) for one in ufw] == [
        ("10.0.0.2/32", "29500"),
        ("10.0.0.2/32", "8443"),
        ("10.0.0.2/32", "vrrp"),
    ]
    alone = {**wish, "manager": "ufw", "gateways": {**near, "page_port": None}}
    assert [one.get("port") for one in firewall.build_rules(alone, [])] == ["29500", None]
    rich = firewall.build_rules({**wish, "manager": "firewalld"}, ["public"])
    assert [one["rule"] for one in rich][-1] == (
        'rule family="ipv4" source address="10.0.0.2/32" protocol value="vrrp" accept'
    )


# As ufw 0.36.2 shows them.
@pytest.mark.parametrize(
    ("network", "line"),
    [
        ("10.0.9.2/32", "Anywhere                   ALLOW       10.0.9.2/vrrp   # kimi-prov"),
        ("10.0.9.0/24", "Anywhere                   ALLOW       10.0.9.0/24/vrrp"),
        ("fd00::2/128", "Anywhere (v6)              ALLOW       fd00::2/vrrp    # kimi-prov"),
    ],
)
def test_ufw_shows_what_gateways_tell_each_other_without_a_port(network, line):
    assert firewall.build_ufw_pattern(network).match(line)
    assert not firewall.build_ufw_pattern("10.0.9.3/32").match(line)


@pytest.fixture
def ufw(tmp_path, monkeypatch):
    """A machine whose ufw keeps a list of what it was told, and whose nft notes what it hears."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ufw").write_text(
        f"#!/bin/sh\ncd {tmp_path}\n"
        'if [ "$1" = status ]; then echo "Status: active"; cat lines 2>/dev/null; exit 0; fi\n'
        'echo "$9/tcp ALLOW $5 # ${11}" >> lines\n'
    )
    (programs / "nft").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/nft\n')
    for file in programs.iterdir():
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return tmp_path
