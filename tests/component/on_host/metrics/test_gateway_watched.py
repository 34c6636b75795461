"""A real Prometheus reads a gateway as kimi_monitor does, and its alerts have what they ask for.

HAProxy, node exporter and Prometheus are the distribution's; configuration, certificate and key are
those that a host which watches is given. The engines behind the gateway are stand-ins.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from gateway_site import Site
from metric_names import asked
from prometheus import get, program, prometheus, query
from waiting import until

from kimi_prov.contract.gateways import SCHEMA
from kimi_prov.monitoring import RULES, alerts
from kimi_prov.on_host.metrics import collect, scrape_target
from kimi_prov.on_host.monitor import config
from kimi_prov.on_host.system.files import write_json
from kimi_prov.on_host.usage import counter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTINGS = {"listen": "127.0.0.1", "alertmanager_port": 9, "scrape_interval_s": 1}
# Of the machines behind it, which show metrics of their own.
OF_MACHINES = {"kimi_stopped"}


class Watched:
    """A site whose gateway is read: the address of the Prometheus that does it."""

    def __init__(self, site: Site, address: str) -> None:
        self.site, self.address = site, address

    def gives(self, expression: str) -> list[dict[str, str]]:
        return [row["metric"] for row in query(self.address, expression)]

    def raised(self) -> set[str]:
        """Alerts whose expression holds, whether for long enough or not."""
        found = get(f"{self.address}/api/v1/alerts") or {"data": {"alerts": []}}
        return {row["labels"]["alertname"] for row in found["data"]["alerts"]}


@pytest.fixture
def watched(
    make_proxy: Any, counting: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Watched]:
    monkeypatch.setattr(counter, "SETTLE_S", 0.5)
    for name in ("prometheus", "prometheus-node-exporter"):
        if shutil.which(name) is None:
            pytest.fail(f"there is no {name}: make deps")
    site = Site(make_proxy, 2, watched=True)
    gateway = site.gateway
    assert gateway.gateway is not None
    assert gateway.metrics is not None
    # An address that this host has.
    gateway.gateway["address"] = "127.0.0.1"
    plan = {"schema": SCHEMA, "gateway": gateway.gateway, "metrics": {"gpus": None}}
    write_json(str(gateway.paths.plan), plan)
    for host in site.hosts.values():
        counting(host)
    counting(gateway, gateway=True)
    gateway.paths.state.mkdir(parents=True, exist_ok=True)
    assert collect.write(gateway.paths) == {}
    # As kimi-usage.service does before it starts.
    (gateway.paths.metrics / "usage.prom").symlink_to(gateway.paths.usage_prom)
    assert until(gateway.paths.usage_prom.exists)
    shown = gateway.metrics["node_port"]
    exporter = (
        *("prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{shown}"),
        *("--collector.disable-defaults", "--collector.textfile", "--log.level=error"),
        f"--collector.textfile.directory={gateway.paths.metrics}",
    )
    with (
        program(tmp_path, *exporter, ready=f"http://127.0.0.1:{shown}/metrics"),
        prometheus(tmp_path, configured(site, tmp_path)) as address,
    ):
        yield Watched(site, address)


def configured(site: Site, folder: Path) -> dict[str, Any]:
    """Write what is read of the gateway, as on a host of kimi_monitor; give its configuration."""
    gateway = site.gateway
    assert gateway.metrics is not None
    given = {
        **scrape_target.read(gateway.paths),
        "address": "127.0.0.1",
        "port": gateway.metrics["port"],
        "engines": [],
        "ca_file": True,
    }
    known = folder / "hosts"
    known.mkdir()
    (known / "gw1.crt").write_text(given["certificate"])
    (known / "gw1.key").write_text(given["key"] + "\n")
    hosts = {"gw1": {**given, "name": "gw1"}}
    text = config.build_prometheus_config(SETTINGS, hosts)
    text = text.replace(config.HOSTS, str(known))
    text = text.replace(config.RULES, str(RULES))
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def of_gateways() -> dict[str, str]:
    """Expressions of the alerts that ask for what a gateway tells, by name."""
    return {row.name: row.expression for row in alerts.load() if "kimi_gateway_" in row.expression}


def test_a_gateway_is_read_with_its_key_and_each_alert_of_it_has_series(watched: Watched) -> None:
    up = {"kimi-node", "kimi-proxy"}
    assert until(lambda: {row["job"] for row in watched.gives("up == 1")} == up)
    wanted = {name for text in of_gateways().values() for name in asked(text)} - OF_MACHINES
    assert {
        "kimi_gateway_has_address",
        "kimi_gateway_machine_up",
        "kimi_gateway_machines_asleep",
        "kimi_gateway_requests_waiting",
        "kimi_gateway_requests_waiting_most",
        "kimi_gateway_clock_apart_seconds",
        "kimi_gateway_machine_certificate_expires_timestamp_seconds",
    } <= wanted
    # That of clients is watched on gateways as on machines.
    wanted.add("kimi_certificate_expires_timestamp_seconds")

    def lacking() -> set[str]:
        rows = {name: watched.gives(f'{name}{{host="gw1"}}') for name in wanted}
        return {name for name, found in rows.items() if not found}

    assert until(lambda: not lacking()), lacking()
    assert watched.gives('haproxy_server_status{host="gw1",proxy="engines"}')
    assert not {name for name in of_gateways() if name in watched.raised()}


def test_machines_that_are_lost_raise_the_alerts_of_the_gateway(watched: Watched) -> None:
    watched.site.hosts["gpu1"].stop()
    assert until(lambda: "KimiGatewayMachineOut" in watched.raised())
    rows = watched.gives(of_gateways()["KimiGatewayMachineOut"])
    assert [(row["host"], row["machine"]) for row in rows] == [("gw1", "gpu1")]
    assert "KimiGatewayNoMachine" not in watched.raised()
    watched.site.hosts["gpu2"].stop()
    assert until(lambda: "KimiGatewayNoMachine" in watched.raised())
