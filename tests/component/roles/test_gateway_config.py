"""What the roles write on each of two gateways from its real plan, read by HAProxy and nft."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from plan_inputs import LAB_SETTINGS, lab_facts
from role_templates import ROOT, filled

from kimi_prov.catalog import loader
from kimi_prov.contract import key_rules
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import stop_state, tls
from kimi_prov.on_host.keys import publish
from kimi_prov.on_host.proxy import pins
from kimi_prov.on_host.system import machine_key
from kimi_prov.planner import gateways
from kimi_prov.planner.gateways import GatewayAddress, ServingHost
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from pathlib import Path

DEFAULTS = yaml.safe_load((ROOT / "roles/proxy/defaults/main.yml").read_text())
HOSTS = [ServingHost("gpu1", "10.0.9.11", 8000, 32), ServingHost("gpu.2", "fd00::12", 8000, 8)]
GATEWAYS = [GatewayAddress("gw1", "10.0.9.1"), GatewayAddress("gw2", "10.0.9.2")]


def planned(host: str, **wishes: object) -> dict[str, Any]:
    facts = lab_facts()
    settings = parse_settings({**LAB_SETTINGS, "kimi_web_ui": True, **wishes}, host=host)
    return gateways.make_plan(facts, settings, loader.load_catalogue(), HOSTS, GATEWAYS)


def machine(folder: Path) -> Paths:
    """The files that the configuration reads."""
    paths = Paths(folder)
    paths.proxy.mkdir(parents=True)
    tls.ensure(paths, {"mode": "self-signed", "names": ["gw"]})
    publish.ensure(paths, {})
    machine_key.ensure(paths.machine_key)
    stop_state.ensure(paths)
    own = paths.tls_crt.read_text()
    pins.ensure(paths, dict.fromkeys(("gpu1", "gpu.2", "gw1"), own))
    pins.ensure_web_ui_certificate(paths, shared=True)
    pins.ensure_peers_certificate(paths, paired=True)
    return paths


@pytest.mark.parametrize("wishes", [{}, {"kimi_web_port": 443}], ids=["", "port 443"])
@pytest.mark.parametrize("host", ["gw1", "gw2"])
@pytest.mark.parametrize("addresses", [["10.0.9.1"], ["10.0.9.1", "fd00::1"]], ids=["4", "4 and 6"])
def test_haproxy_takes_the_configuration_of_each(
    host: str, addresses: list[str], wishes: dict[str, object], tmp_path: Path
) -> None:
    paths = machine(tmp_path)
    facts = {"network": {"addresses": addresses}}
    plan = planned(host, **wishes)
    text = filled("proxy", "haproxy.cfg.j2", plan, kimi_facts=facts, **DEFAULTS)
    assert text.count("\nfrontend web\n") == 1
    paths.key_limits.write_text(filled("proxy", "limits.lua.j2", plan))
    config = tmp_path / "haproxy.cfg"
    config.write_text(text.replace("/etc/kimi", str(paths.etc)))
    done = subprocess.run(
        ["haproxy", "-c", "-f", str(config)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr


def test_how_long_a_client_waits_by_itself_is_the_plans_to_say() -> None:
    plan = planned("gw1")
    assert plan["usage"]["waits_s"] == key_rules.WAITS_S
    plan["usage"]["waits_s"] = 7
    facts = {"network": {"addresses": ["10.0.9.1"]}}
    text = filled("proxy", "haproxy.cfg.j2", plan, kimi_facts=facts, **DEFAULTS)
    assert text.count("{ var(txn.limit_wait) -m int gt 7 }") == 2
    assert "gt 60" not in text


@pytest.mark.parametrize("host", ["gw1", "gw2"])
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("nft") is None, reason="nft reads rules for root alone"
)
def test_nft_takes_the_rules_of_each(host: str, tmp_path: Path) -> None:
    plan = planned(host)
    # Users that every Debian has.
    plan["users"] = {"proxy": "www-data", "service": "daemon", "web": "games", "acme": "mail"}
    file = tmp_path / "firewall.nft"
    file.write_text(filled("firewall", "firewall.nft.j2", plan))
    done = subprocess.run(
        ["nft", "-c", "-f", str(file)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
