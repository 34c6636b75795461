"""What gateways and the hosts behind them know of each other."""

from __future__ import annotations

import pytest

from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import tls
from kimi_prov.on_host.keys import publish
from kimi_prov.on_host.proxy import converge, pins
from kimi_prov.on_host.system import machine_key


@pytest.fixture
def paths(tmp_path):
    found = Paths(tmp_path)
    found.proxy.mkdir(parents=True)
    return found


def certificate(name: str) -> str:
    return tls.make_self_signed([name])


def test_a_certificate_is_kept_without_its_key_until_its_host_goes(paths):
    first, second = certificate("gpu1"), certificate("gpu2")
    assert pins.ensure(paths, {"gpu1": first, "gpu2": second})
    place = paths.hosts / "gpu1.crt"
    assert place.read_text() == tls.extract_certificates(first)
    assert "PRIVATE" not in place.read_text()
    before = converge.compute_digest(paths)
    # One that was not reached stays as it was known.
    assert not pins.ensure(paths, {"gpu1": None, "gpu2": None})
    assert converge.compute_digest(paths) == before
    assert pins.ensure(paths, {"gpu1": first})
    assert [path.name for path in pins.list_files(paths)] == ["gpu1.crt"]
    assert converge.compute_digest(paths) != before
    assert pins.ensure(paths, None)
    assert pins.list_files(paths) == []


def test_check_mode_writes_nothing(paths):
    assert pins.ensure(paths, {"gpu1": certificate("gpu1")}, check=True)
    assert not paths.hosts.exists()


def test_a_door_has_nothing_secret(paths):
    with pytest.raises(HostError, match="no certificate"):
        pins.read_pins(paths)
    tls.ensure(paths, {"mode": "self-signed", "names": ["gw1"]})
    machine_key.ensure(paths.machine_key)
    own = machine_key.read(paths.machine_key)
    found = pins.read_pins(paths)
    shown = {"certificate": paths.tls_crt.read_text(), "key_sha256": publish.hash_key(own)}
    assert found == {**shown, "page_certificate": None}
    assert own not in str(found)


def test_the_certificate_for_the_other_gateway_is_there_while_the_page_is_shared(paths):
    before = converge.compute_digest(paths)
    assert not pins.ensure_web_ui_certificate(paths, shared=False)
    assert pins.ensure_web_ui_certificate(paths, shared=True, check=True)
    assert not paths.page_pem.exists()
    assert pins.ensure_web_ui_certificate(paths, shared=True)
    assert not pins.ensure_web_ui_certificate(paths, shared=True)
    assert converge.compute_digest(paths) != before
    tls.ensure(paths, {"mode": "self-signed", "names": ["gw1"]})
    machine_key.ensure(paths.machine_key)
    shown = pins.read_pins(paths)["page_certificate"]
    assert shown == tls.extract_certificates(paths.page_pem.read_text())
    assert "PRIVATE" not in shown
    assert pins.ensure_web_ui_certificate(paths, shared=False)
    assert not paths.page_pem.exists()
