from __future__ import annotations

import json
import stat

import pytest

from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.keys import key_map, publish


@pytest.fixture
def paths(tmp_path):
    found = Paths(tmp_path)
    found.proxy.mkdir(parents=True)
    return found


def in_map(paths):
    return key_map.parse_map(paths.key_map.read_text())


def test_the_first_run_makes_two_keys_and_keeps_hashes(paths):
    result = publish.ensure(paths, {})
    shown = publish.show(paths)
    assert result["created"] == ["operator", "verify"]
    assert len(shown.removeprefix("sk-kimi-")) == 43
    assert in_map(paths)["operator"] == publish.hash_key(shown)
    assert shown not in paths.key_map.read_text()
    assert shown not in json.dumps(result)
    for file in (paths.operator_new, paths.verify_key):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.keys.stat().st_mode) == 0o700


def test_a_second_run_changes_nothing_also_after_the_key_was_shown(paths):
    publish.ensure(paths, {"alice": "a" * 64})
    assert publish.ensure(paths, {"alice": "a" * 64})["changed"] is False
    publish.forget(paths)
    before = in_map(paths)
    assert publish.ensure(paths, {"alice": "a" * 64})["changed"] is False
    assert in_map(paths) == before
    assert publish.show(paths) is None


def test_names_that_left_the_file_are_removed_and_ours_stay(paths):
    publish.ensure(paths, {"alice": "a" * 64, "bob": "b" * 64})
    operator = in_map(paths)["operator"]
    result = publish.ensure(paths, {"bob": "c" * 64})
    assert result["removed"] == ["alice"]
    assert in_map(paths)["bob"] == "c" * 64
    assert in_map(paths)["operator"] == operator


def test_a_given_file_cannot_take_the_reserved_names(paths):
    publish.ensure(paths, {"operator": "d" * 64})
    assert in_map(paths)["operator"] == publish.hash_key(publish.show(paths))


def test_a_run_killed_between_the_two_files_heals_itself(paths):
    publish.ensure(paths, {})
    publish.forget(paths)
    fresh = publish.make_key()
    paths.operator_new.write_text(fresh + "\n")  # written, and then the power went
    assert publish.show(paths) == fresh
    assert in_map(paths)["operator"] == publish.hash_key(fresh)


def test_rotation_before_any_apply_says_what_to_do(paths):
    with pytest.raises(HostError) as raised:
        publish.rotate(paths)
    assert "kimi-prov apply" in raised.value.fix


def test_the_page_has_a_key_of_its_own_while_there_is_a_page(paths):
    result = publish.ensure(paths, {}, page=True)
    own = paths.web_key.read_text().strip()
    assert result["created"] == ["operator", "verify", "web"]
    assert in_map(paths)["web"] == publish.hash_key(own)
    assert own not in json.dumps(result)
    assert stat.S_IMODE(paths.web_key.stat().st_mode) == 0o600
    assert publish.ensure(paths, {}, page=True)["changed"] is False
    assert publish.ensure(paths, {})["removed"] == ["web"]
    assert not paths.web_key.exists()


def test_a_revoked_key_is_refused_and_the_page_s_comes_back_as_another(paths):
    publish.ensure(paths, {"alice": "a" * 64}, page=True)
    before = in_map(paths)
    publish.revoke(paths, "web")
    publish.revoke(paths, "alice")
    assert sorted(in_map(paths)) == ["operator", "verify"]
    publish.ensure(paths, {"alice": "a" * 64}, page=True)
    assert sorted(in_map(paths)) == ["alice", "operator", "verify", "web"]
    assert in_map(paths)["web"] != before["web"]


@pytest.mark.parametrize(
    ("name", "words"), [("operator", "rotate"), ("verify", "rotate"), ("bob", "alice, operator")]
)
def test_what_cannot_be_revoked_is_said_with_what_can(paths, name, words):
    publish.ensure(paths, {"alice": "a" * 64})
    with pytest.raises(HostError) as caught:
        publish.revoke(paths, name)
    assert words in caught.value.fix
    assert sorted(in_map(paths)) == ["alice", "operator", "verify"]


def test_the_page_s_password_is_shown_once(paths, monkeypatch, capsys):
    publish.ensure(paths, {}, page=True)
    paths.web_admin_new.write_text('{"email": "admin@kimi.local", "password": "p"}\n')
    monkeypatch.setattr(publish, "Paths", lambda: paths)
    publish.main(["show"])
    assert json.loads(capsys.readouterr().out)["web_admin"]["password"] == "p"
    publish.main(["forget"])
    capsys.readouterr()
    publish.main(["show"])
    assert json.loads(capsys.readouterr().out)["web_admin"] is None


def test_the_names_of_gateways_keys_are_nobody_elses(paths):
    publish.ensure(paths, {}, gateways={"gateway.gw1": "a" * 64})
    with pytest.raises(HostError, match="no valid name"):
        publish.add(paths, "gateway.gw2", {})
    with pytest.raises(HostError, match="cannot be taken away"):
        publish.revoke(paths, "gateway.gw1")
    # A run that does not reach the gateway leaves it in; without a gateway it goes.
    publish.ensure(paths, {}, gateways={"gateway.gw1": None})
    assert in_map(paths)["gateway.gw1"] == "a" * 64
    publish.ensure(paths, {})
    assert "gateway.gw1" not in in_map(paths)
