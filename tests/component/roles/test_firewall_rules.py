"""The rule set of the role `firewall`: what each kind of machine gets, read by nft itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from role_templates import filled

from kimi_prov.planner.service.proxy import list_peer_ports

if TYPE_CHECKING:
    from pathlib import Path

GROUP = {
    "peers_ipv4": ["10.0.0.2", "10.0.0.3"],
    "peers_ipv6": [],
    "peer_ports": ["29500-29501", "29510-29541"],
}
METRICS = {"port": 9443, "node_port": 8403, "ipv4": ["198.51.100.7/32"], "ipv6": ["fd00:9::/64"]}
NEAR = {"port": 29600, "ipv4": ["10.0.0.2", "10.0.0.3"], "ipv6": []}
OTHER = {"ipv4": ["10.0.0.2/32"], "ipv6": [], "port": 29500, "page_port": None}
WEB = {"backend_port": 8400, "api_port": 8401}


def rules(*, serves: bool, web: bool = False, port: int | None = None, **group: Any) -> str:
    """The file as Ansible writes it; its users are some that every Debian has."""
    watched = [METRICS["port"]] if "metrics" in group else []
    plan = {
        "firewall": {
            "ports": [*([8000] if serves else []), *watched],
            "ipv4": ["192.0.2.0/24"],
            "ipv6": [],
            "challenge_port": port,
            **group,
        },
        "proxy": {
            "backends": [{"index": 0, "port": 8001}] if serves else [],
            "tls": {"acme": {"port": 8402}},
        },
        "users": {"proxy": "www-data", "service": "daemon", "web": "games", "acme": "mail"},
        "web": WEB if web else None,
    }
    return filled("firewall", "firewall.nft.j2", plan)


MACHINES = {
    "alone": rules(serves=True),
    "alone-with-all": rules(serves=True, web=True, port=80),
    "watched": rules(serves=True, web=True, port=80, metrics=METRICS),
    "head": rules(serves=True, web=True, port=80, **GROUP),
    "rank": rules(serves=False, **GROUP),
    "rank-watched": rules(serves=False, **GROUP, metrics=METRICS),
    "gateway": rules(serves=True, gateways=OTHER),
    "gateway-page": rules(serves=True, web=True, gateways=OTHER | {"page_port": 8443}),
    "gives": rules(serves=True, neighbours=NEAR),
    "ipv6": rules(serves=False, **{**GROUP, "peers_ipv4": [], "peers_ipv6": ["fd00::2"]}),
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("nft") is None, reason="nft reads rules for root alone"
)
def test_nft_takes_the_rules_and_loads_none(name: str, tmp_path: Path) -> None:
    file = tmp_path / "firewall.nft"
    file.write_text(MACHINES[name])
    done = subprocess.run(
        ["nft", "-c", "-f", str(file)], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_rank_guards_the_group_s_ports_alone() -> None:
    text = MACHINES["rank"]
    assert "tcp dport { 29500-29501, 29510-29541 } jump peers" in text
    assert "elements = { 10.0.0.2, 10.0.0.3 }" in text
    assert "jump guard" not in text
    assert "8001" not in text


def test_a_watched_rank_guards_the_port_of_its_metrics_too() -> None:
    text = MACHINES["rank-watched"]
    assert "tcp dport 9443 jump watched" in text
    assert "jump guard" not in text
    exporter = next(line for line in text.splitlines() if "dport 8403" in line)
    assert 'meta skuid != { root, "www-data" } counter reject' in exporter


def test_a_machine_alone_knows_no_peers() -> None:
    assert "peers" not in MACHINES["alone-with-all"]
    assert "group" not in MACHINES["alone-with-all"]


def test_ports_of_a_group_are_told_as_ranges() -> None:
    group = {"control_port": 29500, "master_port": 29501, "first_port": 29510, "last_port": 29541}
    assert list_peer_ports(group) == ["29500-29501", "29510-29541"]
    assert list_peer_ports({**group, "first_port": 29502}) == ["29500-29541"]
    assert list_peer_ports({**group, "control_port": 29400}) == ["29400", "29501", "29510-29541"]


def test_metrics_are_for_their_own_networks_and_the_exporter_for_the_proxy() -> None:
    text = rules(serves=True, metrics=METRICS)
    assert "tcp dport { 8000 } jump guard" in text
    assert "tcp dport 9443 jump watched" in text
    chain = text.partition("chain watched {")[2].partition("}")[0]
    assert "@metrics_ipv4 accept" in chain
    assert "@allowed_ipv4" not in chain
    exporter = next(line for line in text.splitlines() if "dport 8403" in line)
    assert 'meta skuid != { root, "www-data" } counter reject' in exporter
    assert "watched" not in rules(serves=True)


def test_weights_are_given_to_the_takers_alone() -> None:
    text = MACHINES["gives"]
    assert "tcp dport 29600 jump neighbours" in text
    chain = text.partition("chain neighbours {")[2].partition("}")[0]
    assert "ip saddr @neighbours_ipv4 accept" in chain
    assert chain.strip().endswith("counter drop")
    listed = text.partition("set neighbours_ipv4 {")[2].partition("chain")[0]
    assert "elements = { 10.0.0.2, 10.0.0.3 }" in listed
    assert "neighbours" not in MACHINES["head"]


def test_the_page_is_open_for_the_other_gateway_whatever_networks_are_listed() -> None:
    lines = [line.strip() for line in MACHINES["gateway-page"].splitlines()]
    own = lines.index("ip saddr @gateways_ipv4 tcp dport 8443 accept")
    assert own < lines.index("tcp dport { 8000 } jump guard")
    assert "tcp dport 8443 accept" not in MACHINES["gateway"]
