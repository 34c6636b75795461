"""Two gateways before two machines, in a few minutes: what answers on the machines is a stand-in.

The engine's place has a process that answers each chat with the same words; HAProxy, keepalived,
nftables and the roles are the real ones. With engines, and under every harm: test_two_gateways.py.
"""

from __future__ import annotations

import json
import socket
import tarfile
from typing import TYPE_CHECKING, Any

import closed_form
import pytest
from gateways import NODES, Load, Site, site_up
from host_stand_ins import stand_ins
from machines import kimi_prov
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.lab, pytest.mark.slow]

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


GATEWAYS = ("gw1", "gw2")
OF_GATEWAYS = ("--limit", ",".join(GATEWAYS))


def told(site: Site, command: str, *words: str, exits: int = 0) -> dict[str, Any]:
    """What a command tells of the gateways, by host."""
    done = kimi_prov(command, site.lab.inventory, *OF_GATEWAYS, *words, "--format", "json")
    assert done.returncode == exits, done.stdout + done.stderr
    document = json.loads(done.stdout)
    closed_form.validate(document, command)
    assert set(document["hosts"]) == set(GATEWAYS)
    return dict(document["hosts"])


def drift(site: Site, *, exits: int = 0) -> dict[str, set[tuple[str, str]]]:
    found = told(site, "drift", exits=exits)
    assert all(row["complete"] for row in found.values()), found
    return {
        host: {(one["id"], one["subject"]) for one in row["drift"]} for host, row in found.items()
    }


def test_what_is_changed_at_a_gateway_is_drift_until_it_is_applied(whole: Site) -> None:
    assert drift(whole) == {"gw1": set(), "gw2": set()}
    whole.host("gw2").ssh(
        "echo '# by hand' >> /etc/kimi/address.conf; systemctl stop kimi-gateway-address; "
        "echo '# by hand' > /etc/kimi/proxy/own.cfg"
    )
    assert drift(whole, exits=1) == {
        "gw1": set(),
        "gw2": {
            ("drift.file", "/etc/kimi/address.conf"),
            ("drift.file_added", "/etc/kimi/proxy/own.cfg"),
            ("drift.unit_stopped", "kimi-gateway-address.service"),
        },
    }
    whole.host("gw2").ssh("rm /etc/kimi/proxy/own.cfg")
    done = kimi_prov("apply", whole.lab.inventory, *TAGS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert drift(whole) == {"gw1": set(), "gw2": set()}


def test_what_was_applied_to_gateways_is_listed(whole: Site) -> None:
    for row in told(whole, "history").values():
        last = row["entries"][-1]
        assert (last["kind"], last["result"], last["restorable"]) == ("apply", "done", False)
        assert last["gateway"] == {"address": whole.address, "hosts": list(NODES)}
        assert row["current"] == last["number"]


def test_a_bundle_has_what_the_proxies_are_told_and_no_key(whole: Site, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.tar.gz"
    found = told(whole, "diagnose", "--to", str(bundle))
    assert [row["findings"] for row in found.values()] == [[], []]
    with tarfile.open(bundle) as archive:
        names = {name.partition("/")[2]: name for name in archive.getnames()}
        read = [archive.extractfile(name) for name in names.values()]
        text = b"".join(file.read() for file in read if file).decode()
    for host in GATEWAYS:
        assert {f"{host}/configuration/haproxy.cfg", f"{host}/configuration/address.conf"} <= {
            *names
        }
        assert f"{host}/logs/kimi-gateway-address.service.log" in names
    own = whole.host("gw1").ssh("cat /etc/kimi/keys/verify.key /etc/kimi/machine-key.map").split()
    for secret in (whole.key, *(word for word in own if len(word) > 20)):
        assert secret not in text


def test_gateways_are_updated_one_after_the_other(whole: Site) -> None:
    load = Load(whole)
    with load.running():
        found = told(whole, "update", "--defer-restart")
    assert load.failed == []
    assert {
        host: (row["restarted"], row["verified"]) for host, row in found.items()
    } == dict.fromkeys(GATEWAYS, (False, True))
    assert drift(whole) == {"gw1": set(), "gw2": set()}
