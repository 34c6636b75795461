"""The configurations of a host that watches, read by the distribution's own tools."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.on_host.monitor import config

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = {
    "listen": "127.0.0.1",
    "port": 9090,
    "alertmanager_port": 9093,
    "scrape_interval_s": 15,
    "networks": ["10.0.9.5/32", "10.0.8.0/24", "fd00::/64"],
}
HOST = {
    "name": "h1",
    "address": "10.0.0.1",
    "port": 9443,
    "server_name": "h1",
    "engines": [0, 1],
    "ca_file": True,
}
# Where an ordinary user does not look.
NFT = "/usr/sbin/nft"
LIST = f"{NFT} list table inet kimi_monitor"
MAIL = {
    "to": "ops@example.com",
    "from": "kimi@example.com",
    "smarthost": "mail.example.com:587",
    "require_tls": True,
    "username": "kimi",
    "password": 'p"a\\ss {{ x }}',
}


def accepts(tmp_path: Path, text: str, *command: str) -> str:
    """What the tool says against a configuration; empty where it takes it."""
    file = tmp_path / "config.yml"
    file.write_text(text)
    done = subprocess.run(
        [*command, str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def document(text: str) -> dict[str, Any]:
    head, _, body = text.partition("\n")
    assert "Written by kimi-prov" in head
    found: dict[str, Any] = json.loads(body)
    return found


@pytest.mark.parametrize("ca_file", [True, False])
def test_prometheus_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ca_file: bool
) -> None:
    monkeypatch.setattr(config, "HOSTS", str(tmp_path))
    monkeypatch.setattr(config, "RULES", str(tmp_path))
    for name in ("h1.crt", "h1.key"):
        (tmp_path / name).write_text("x")
    text = config.build_prometheus_config(SETTINGS, {"h1": {**HOST, "ca_file": ca_file}})
    assert accepts(tmp_path, text, "promtool", "check", "config", "--syntax-only") == ""


def test_a_host_is_read_by_its_certificate_and_key_alone() -> None:
    scraped = document(config.build_prometheus_config(SETTINGS, {"h1": HOST}))["scrape_configs"][0]
    assert scraped["tls_config"] == {
        "ca_file": "/etc/kimi-monitor/hosts/h1.crt",
        "server_name": "h1",
    }
    assert scraped["authorization"]["credentials_file"] == "/etc/kimi-monitor/hosts/h1.key"
    labels = [row["labels"] for row in scraped["static_configs"]]
    assert [(row["job"], row.get("engine"), row["__metrics_path__"]) for row in labels] == [
        ("kimi-node", None, "/metrics/node"),
        ("kimi-proxy", None, "/metrics/proxy"),
        ("kimi-engine", "0", "/metrics/engine/0"),
        ("kimi-engine", "1", "/metrics/engine/1"),
    ]
    assert {row["host"] for row in labels} == {"h1"}


def test_an_address_of_ipv6_has_its_brackets() -> None:
    text = config.build_prometheus_config(SETTINGS, {"h1": {**HOST, "address": "fd00::1"}})
    targets = document(text)["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == ["[fd00::1]:9443"]


@pytest.mark.parametrize(
    "receivers",
    [
        {"webhook_url": None, "email": None},
        {"webhook_url": "http://127.0.0.1:9999/alerts", "email": None},
        {"webhook_url": None, "email": MAIL},
        {"webhook_url": "https://hooks.example.com/x", "email": {**MAIL, "username": None}},
    ],
)
def test_alertmanager_takes_it(tmp_path: Path, receivers: dict[str, Any]) -> None:
    text = config.build_alertmanager_config(receivers)
    assert accepts(tmp_path, text, "amtool", "check-config") == ""
    site = document(text)["receivers"][0]
    assert bool(site.get("webhook_configs")) == bool(receivers["webhook_url"])
    assert bool(site.get("email_configs")) == bool(receivers["email"])


def test_amtool_would_refuse_what_is_none(tmp_path: Path) -> None:
    text = config.build_alertmanager_config({"webhook_url": "no url", "email": None})
    assert "unsupported scheme" in accepts(tmp_path, text, "amtool", "check-config")


@pytest.mark.parametrize("networks", [SETTINGS["networks"], [], ["0.0.0.0/0"]])
def test_the_packet_filter_lets_the_listed_networks_reach_both_ports(
    tmp_path: Path, networks: list[str]
) -> None:
    text = config.build_firewall({**SETTINGS, "networks": networks})
    file = tmp_path / "firewall.nft"
    file.write_text(text)
    # In a network of its own, whose rules are nobody's.
    loaded = subprocess.run(
        ["unshare", "--net", "--map-root-user", "sh", "-c", f"{NFT} -f {file} && {LIST}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert loaded.returncode == 0, loaded.stderr
    assert "tcp dport { 9090, 9093 } jump guard" in loaded.stdout
    for net in networks:
        assert net.removesuffix("/32") in loaded.stdout
    assert config.find_firewall_comment(text) in loaded.stdout


def test_another_list_has_another_mark() -> None:
    marks = {
        config.find_firewall_comment(config.build_firewall(SETTINGS)),
        config.find_firewall_comment(config.build_firewall({**SETTINGS, "networks": []})),
        config.find_firewall_comment(config.build_firewall({**SETTINGS, "port": 9091})),
    }
    assert len(marks) == 3
    assert all(mark.startswith("kimi-prov ") for mark in marks)
