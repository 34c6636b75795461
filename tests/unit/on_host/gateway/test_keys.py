from __future__ import annotations

import json
import stat

import pytest

from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.gateway import keys, proxy, tls


@pytest.fixture
def paths(tmp_path):
    found = Paths(tmp_path)
    found.proxy.mkdir(parents=True)
    return found


def in_map(paths):
    return keys.parse_map(paths.key_map.read_text())


def test_the_first_run_makes_two_keys_and_keeps_hashes(paths):
    result = keys.ensure(paths, {})
    shown = keys.show(paths)
    assert result["created"] == ["operator", "verify"]
    assert len(shown.removeprefix("sk-kimi-")) == 43
    assert in_map(paths)["operator"] == keys.digest(shown)
    assert shown not in paths.key_map.read_text()
    assert shown not in json.dumps(result)
    for file in (paths.operator_new, paths.verify_key):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.keys.stat().st_mode) == 0o700


def test_a_second_run_changes_nothing_also_after_the_key_was_shown(paths):
    keys.ensure(paths, {"alice": "a" * 64})
    assert keys.ensure(paths, {"alice": "a" * 64})["changed"] is False
    keys.forget(paths)
    before = in_map(paths)
    assert keys.ensure(paths, {"alice": "a" * 64})["changed"] is False
    assert in_map(paths) == before
    assert keys.show(paths) is None


def test_names_that_left_the_file_are_removed_and_ours_stay(paths):
    keys.ensure(paths, {"alice": "a" * 64, "bob": "b" * 64})
    operator = in_map(paths)["operator"]
    result = keys.ensure(paths, {"bob": "c" * 64})
    assert result["removed"] == ["alice"]
    assert in_map(paths)["bob"] == "c" * 64
    assert in_map(paths)["operator"] == operator


def test_a_given_file_cannot_take_the_reserved_names(paths):
    keys.ensure(paths, {"operator": "d" * 64})
    assert in_map(paths)["operator"] == keys.digest(keys.show(paths))


def test_a_run_killed_between_the_two_files_heals_itself(paths):
    keys.ensure(paths, {})
    keys.forget(paths)
    fresh = keys.new_key()
    paths.operator_new.write_text(fresh + "\n")  # written, and then the power went
    assert keys.show(paths) == fresh
    assert in_map(paths)["operator"] == keys.digest(fresh)


def test_rotation_before_any_apply_says_what_to_do(paths):
    with pytest.raises(HostError) as raised:
        keys.rotate(paths)
    assert "kimi-prov apply" in raised.value.fix


def test_check_mode_writes_nothing(paths):
    wish = {"tls": {"mode": "self-signed", "names": ["h"]}, "api_keys": {}}
    before = sorted(paths.root.rglob("*"))
    assert proxy.ensure(paths, wish, check=True)["changed"] is True
    assert sorted(paths.root.rglob("*")) == before


def test_the_proxy_is_to_be_reloaded_where_the_machine_key_was_made_anew(paths):
    wish = {"tls": {"mode": "self-signed", "names": ["h"]}, "api_keys": {}}
    assert proxy.ensure(paths, wish)["changed"] is True
    loaded = proxy.stamp(paths)
    assert proxy.ensure(paths, wish)["changed"] is False
    assert proxy.stamp(paths) == loaded
    paths.machine_key.unlink()
    assert proxy.ensure(paths, wish)["changed"] is True
    assert proxy.action(loaded, proxy.stamp(paths), active=True) == "reload"


def test_the_page_has_a_key_of_its_own_while_there_is_a_page(paths):
    result = keys.ensure(paths, {}, page=True)
    own = paths.web_key.read_text().strip()
    assert result["created"] == ["operator", "verify", "web"]
    assert in_map(paths)["web"] == keys.digest(own)
    assert own not in json.dumps(result)
    assert stat.S_IMODE(paths.web_key.stat().st_mode) == 0o600
    assert keys.ensure(paths, {}, page=True)["changed"] is False
    assert keys.ensure(paths, {})["removed"] == ["web"]
    assert not paths.web_key.exists()


def test_a_revoked_key_is_refused_and_the_page_s_comes_back_as_another(paths):
    keys.ensure(paths, {"alice": "a" * 64}, page=True)
    before = in_map(paths)
    keys.revoke(paths, "web")
    keys.revoke(paths, "alice")
    assert sorted(in_map(paths)) == ["operator", "verify"]
    keys.ensure(paths, {"alice": "a" * 64}, page=True)
    assert sorted(in_map(paths)) == ["alice", "operator", "verify", "web"]
    assert in_map(paths)["web"] != before["web"]


@pytest.mark.parametrize(
    ("name", "words"), [("operator", "rotate"), ("verify", "rotate"), ("bob", "alice, operator")]
)
def test_what_cannot_be_revoked_is_said_with_what_can(paths, name, words):
    keys.ensure(paths, {"alice": "a" * 64})
    with pytest.raises(HostError) as caught:
        keys.revoke(paths, name)
    assert words in caught.value.fix
    assert sorted(in_map(paths)) == ["alice", "operator", "verify"]


def test_the_page_s_password_is_shown_once(paths, monkeypatch, capsys):
    keys.ensure(paths, {}, page=True)
    paths.web_admin_new.write_text('{"email": "admin@kimi.local", "password": "p"}\n')
    monkeypatch.setattr(keys, "Paths", lambda: paths)
    keys.main(["show"])
    assert json.loads(capsys.readouterr().out)["web_admin"]["password"] == "p"
    keys.main(["forget"])
    capsys.readouterr()
    keys.main(["show"])
    assert json.loads(capsys.readouterr().out)["web_admin"] is None


def test_a_gateway_has_the_keys_of_the_first_and_its_own_of_the_machine(paths, tmp_path):
    first, second = paths, Paths(tmp_path / "second")
    second.proxy.mkdir(parents=True)
    for place in (first, second):
        keys.ensure(place, {})
        tls.ensure(place, {"mode": "self-signed", "names": ["10.0.0.9"]})
    keys.add(first, "alice", {"limits": {"tokens_per_day": 9}})
    given = keys.given_on(first)
    assert keys.take(second, given)
    own = in_map(second)
    assert {**own, "verify": None} == {**in_map(first), "verify": None}
    assert own["verify"] == keys.digest(second.verify_key.read_text().strip())
    assert second.key_rules.read_text() == first.key_rules.read_text()
    assert second.tls_pem.read_text() == first.tls_pem.read_text()
    # One operator's key: it is shown at the first.
    assert (keys.show(second), keys.show(first) is not None) == (None, True)
    assert not keys.take(second, keys.given_on(first))
    # What an apply does there changes nothing of it.
    assert keys.ensure(second, {})["changed"] is False
    keys.revoke(first, "alice")
    assert keys.take(second, keys.given_on(first))
    assert "alice" not in in_map(second)


def test_the_names_of_gateways_keys_are_nobody_elses(paths):
    keys.ensure(paths, {}, gateways={"gateway.gw1": "a" * 64})
    with pytest.raises(HostError, match="no name to give"):
        keys.add(paths, "gateway.gw2", {})
    with pytest.raises(HostError, match="cannot be taken away"):
        keys.revoke(paths, "gateway.gw1")
    # A run that does not reach the gateway leaves it in; without a gateway it goes.
    keys.ensure(paths, {}, gateways={"gateway.gw1": None})
    assert in_map(paths)["gateway.gw1"] == "a" * 64
    keys.ensure(paths, {})
    assert "gateway.gw1" not in in_map(paths)
