"""HAProxy and the node exporter show the metrics that we ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from engine_metrics import names
from metric_names import all_asked
from ports import free_port
from prometheus import program, shown

if TYPE_CHECKING:
    from collections.abc import Iterator


HAPROXY = """
defaults
    mode http
    timeout client 5s
    timeout server 5s
    timeout connect 5s
frontend metrics
    bind 127.0.0.1:{port}
    http-request use-service prometheus-exporter
"""
# As the role `metrics` has it, of those whose metrics are asked for.
COLLECTORS = ("cpu", "filesystem", "meminfo", "netdev", "stat")


@pytest.fixture(scope="module")
def haproxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("haproxy"), free_port()
    (folder / "haproxy.cfg").write_text(HAPROXY.format(port=port))
    address = f"http://127.0.0.1:{port}/metrics"
    with program(folder, "haproxy", "-db", "-f", "haproxy.cfg", ready=address):
        yield shown(address)


@pytest.fixture(scope="module")
def node_exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("node"), free_port()
    address = f"http://127.0.0.1:{port}/metrics"
    argv = ["prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{port}"]
    argv += ["--collector.disable-defaults", *(f"--collector.{name}" for name in COLLECTORS)]
    with program(folder, *argv, ready=address):
        yield shown(address)


def beginning(prefix: str) -> dict[str, set[str]]:
    found = {name: files for name, files in all_asked().items() if name.startswith(prefix)}
    assert found
    return found


def lacking(prefix: str, there: set[str]) -> dict[str, set[str]]:
    return {name: files for name, files in beginning(prefix).items() if name not in there}


def test_the_proxy_has_every_name(haproxy: str) -> None:
    assert lacking("haproxy_", names(haproxy)) == {}


def test_the_node_exporter_has_every_name(node_exporter: str) -> None:
    assert lacking("node_", names(node_exporter)) == {}
