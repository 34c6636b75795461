"""Two gateways before two machines, in a few minutes: what answers on the machines is a stand-in.

The engine's place has a process that answers each chat with the same words; HAProxy, keepalived,
nftables and the roles are the real ones. With engines, and under every harm: test_two_gateways.py.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from gateways import NODES, Load, Site, site_up
from host_stand_ins import stand_ins
from machines import kimi_prov
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.lab

NETWORK = "10.93.132"
TAGS = ("--tags", "host_base,proxy,firewall,gateway")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("doors")
    with site_up(folder, NETWORK, *TAGS, applied=lambda lab: stand_ins(lab, NODES)) as found:
        yield found


@pytest.fixture
def whole(site: Site) -> Site:
    assert until(site.takes_all)
    return site


def test_one_key_is_answered_at_every_address_and_by_no_machine(whole: Site) -> None:
    for address in (whole.address, whole.host("gw1").address, whole.host("gw2").address):
        assert "A stand-in says so." in whole.ask(address=address, retries=0)
    assert len(whole.has_address()) == 1
    for name in NODES:
        # What is dropped is never answered: the time tells nothing but that.
        with pytest.raises(TimeoutError):
            socket.create_connection((whole.host(name).address, 8000), timeout=5)


def certificates(site: Site) -> dict[str, str]:
    return {name: site.host(name).ssh("cat /etc/kimi/proxy/tls.crt") for name in NODES}


def test_machines_get_new_certificates_in_turn_and_no_request_fails(whole: Site) -> None:
    before = certificates(whole)
    for name in NODES:
        whole.host(name).ssh("rm /etc/kimi/proxy/tls.pem /etc/kimi/proxy/tls.crt")
    load = Load(whole)
    with load.running():
        done = kimi_prov("apply", whole.lab.inventory, *TAGS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert load.failed == []
    after = certificates(whole)
    assert [name for name in NODES if after[name] == before[name]] == []
    assert whole.takes_all()


def test_the_loss_of_the_gateway_with_the_address_costs_no_request(whole: Site) -> None:
    (name,) = whole.has_address()
    load = Load(whole)
    with load.running():
        whole.host(name).ssh("kill -9 $(systemctl show -P MainPID kimi-proxy)")
    assert load.failed == []
    assert until(lambda: len(whole.has_address()) == 1)
