"""Two gateways tell each other who has which conversation: encrypted, and to each other alone."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import subprocess
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
import waiting
import yaml
from plan_inputs import LAB_SETTINGS, lab_facts
from role_templates import ROOT, filled

from kimi_prov.catalog import loader
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import tls
from kimi_prov.on_host.keys import publish
from kimi_prov.on_host.proxy import pins
from kimi_prov.planner import gateways
from kimi_prov.planner.gateways import GatewayAddress, ServingHost
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEFAULTS = yaml.safe_load((ROOT / "roles/proxy/defaults/main.yml").read_text())
GATEWAYS = [GatewayAddress("gw1", "127.0.0.1"), GatewayAddress("gw2", "127.0.0.2")]
# As one that knows HAProxy's protocol and neither certificate would begin.
HELLO = b"HAProxyS 2.1\ngw1\ngw2 1 1\n"


def planned(host: str, port: int) -> dict[str, Any]:
    settings = parse_settings({**LAB_SETTINGS, "kimi_group_port": port}, host=host)
    hosts = [ServingHost("gpu1", "10.0.9.11", 8000, 8)]
    return gateways.make_plan(lab_facts(), settings, loader.load_catalogue(), hosts, GATEWAYS)


def free_port(address: str) -> int:
    with socket.socket() as found:
        found.bind((address, 0))
        return int(found.getsockname()[1])


class Gateway:
    """The role's own section of peers, before a frontend that remembers who came."""

    def __init__(self, folder: Path, own: GatewayAddress, port: int) -> None:
        self.own, self.port = own, port
        self.paths = Paths(folder)
        self.paths.proxy.mkdir(parents=True)
        self.api = free_port(own.address)
        self.socket = folder / "haproxy.sock"
        pins.ensure_peers_certificate(self.paths, paired=True)

    def configure(self) -> Path:
        facts = {"network": {"addresses": [self.own.address]}}
        plan = planned(self.own.host, self.port)
        text = filled("proxy", "haproxy.cfg.j2", plan, kimi_facts=facts, **DEFAULTS)
        (section,) = re.findall(r"(?ms)^peers gateways\n.*?(?=^\S)", text)
        # Both run on one machine here.
        section = section.replace("0.0.0.0", self.own.address)
        section = section.replace("/etc/kimi", str(self.paths.etc))
        config = self.paths.proxy / "haproxy.cfg"
        config.write_text(f"""global
    localpeer {self.own.host}
    stats socket {self.socket} mode 600
defaults
    mode http
    timeout connect 2s
    timeout client 5s
    timeout server 5s
{section}
frontend api
    bind {self.own.address}:{self.api}
    http-request track-sc0 hdr(x-talk) table seen
    http-request return status 200
backend seen
    stick-table type string len 32 size 1k expire 1m store http_req_cnt peers gateways
""")
        return config

    def remembers(self, talk: str) -> bool:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self.socket))
            line.sendall(b"show table seen\n")
            told = b"".join(iter(lambda: line.recv(65536), b""))
        return f"key={talk}".encode() in told

    def ask(self, talk: str) -> None:
        line = http.client.HTTPConnection(self.own.address, self.api, timeout=10)
        line.request("GET", "/", headers={"x-talk": talk})
        assert line.getresponse().status == 200
        line.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Gateway, Gateway]]:
    port = free_port("127.0.0.1")
    made = tuple(Gateway(tmp_path / row.host, row, port) for row in GATEWAYS)
    for gateway in made:
        publish.ensure(gateway.paths, {})
    # As an apply has it: the second takes what the first gives.
    publish.import_keys(made[1].paths, publish.export_keys(made[0].paths))
    with ExitStack() as stack:
        for gateway in made:
            process = stack.enter_context(
                subprocess.Popen(["haproxy", "-W", "-db", "-f", str(gateway.configure())])
            )
            stack.callback(process.terminate)
        for gateway in made:
            assert waiting.until(gateway.socket.exists)
        yield made[0], made[1]


def test_a_conversation_is_known_to_the_other_gateway(pair: tuple[Gateway, Gateway]) -> None:
    first, second = pair
    first.ask("told-to-first")
    assert waiting.until(lambda: second.remembers("told-to-first"))
    second.ask("told-to-second")
    assert waiting.until(lambda: first.remembers("told-to-second"))


@pytest.mark.parametrize("how", ["plain", "no certificate", "another certificate"])
def test_who_has_not_their_certificate_learns_nothing(
    how: str, pair: tuple[Gateway, Gateway], tmp_path: Path
) -> None:
    first, _ = pair
    first.ask("secret")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if how == "another certificate":
        other = tmp_path / "other.pem"
        other.write_text(tls.make_self_signed(["gw2"], usage="serverAuth,clientAuth"))
        context.load_cert_chain(other)
    heard = b""
    with ExitStack() as stack, suppress(ssl.SSLError, ConnectionError):
        line = stack.enter_context(
            socket.create_connection((first.own.address, first.port), timeout=10)
        )
        talk = line if how == "plain" else stack.enter_context(context.wrap_socket(line))
        talk.sendall(HELLO)
        heard = talk.recv(4096)
    assert b"200" not in heard
    assert b"secret" not in heard
