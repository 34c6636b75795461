"""Keys beside a certificate: of gateways, in check mode, with a new machine key."""

from __future__ import annotations

import pytest

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import tls
from kimi_prov.on_host.keys import key_map, publish
from kimi_prov.on_host.proxy import converge


@pytest.fixture
def paths(tmp_path):
    found = Paths(tmp_path)
    found.proxy.mkdir(parents=True)
    return found


def in_map(paths):
    return key_map.parse_map(paths.key_map.read_text())


def test_check_mode_writes_nothing(paths):
    wish = {"tls": {"mode": "self-signed", "names": ["h"]}, "api_keys": {}}
    before = sorted(paths.root.rglob("*"))
    assert converge.ensure(paths, wish, check=True)["changed"] is True
    assert sorted(paths.root.rglob("*")) == before


def test_the_proxy_is_to_be_reloaded_where_the_machine_key_was_made_anew(paths):
    wish = {"tls": {"mode": "self-signed", "names": ["h"]}, "api_keys": {}}
    assert converge.ensure(paths, wish)["changed"] is True
    loaded = converge.compute_digest(paths)
    assert converge.ensure(paths, wish)["changed"] is False
    assert converge.compute_digest(paths) == loaded
    paths.machine_key.unlink()
    assert converge.ensure(paths, wish)["changed"] is True
    assert converge.decide_action(loaded, converge.compute_digest(paths), active=True) == "reload"


def test_a_gateway_has_the_keys_of_the_first_and_its_own_of_the_machine(paths, tmp_path):
    first, second = paths, Paths(tmp_path / "second")
    second.proxy.mkdir(parents=True)
    for place in (first, second):
        publish.ensure(place, {})
        tls.ensure(place, {"mode": "self-signed", "names": ["10.0.0.9"]})
    publish.add(first, "alice", {"limits": {"tokens_per_day": 9}})
    given = publish.export_keys(first)
    assert publish.import_keys(second, given)
    own = in_map(second)
    assert {**own, "verify": None} == {**in_map(first), "verify": None}
    assert own["verify"] == publish.hash_key(second.verify_key.read_text().strip())
    assert second.key_rules.read_text() == first.key_rules.read_text()
    assert second.tls_pem.read_text() == first.tls_pem.read_text()
    # One operator's key: it is shown at the first.
    assert (publish.show(second), publish.show(first) is not None) == (None, True)
    assert not publish.import_keys(second, publish.export_keys(first))
    # What an apply does there changes nothing of it.
    assert publish.ensure(second, {})["changed"] is False
    publish.revoke(first, "alice")
    assert publish.import_keys(second, publish.export_keys(first))
    assert "alice" not in in_map(second)
