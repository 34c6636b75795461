"""A damaged file of keys removes no key, and lifts neither expiry nor limit."""

from __future__ import annotations

import json

import pytest

from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.keys import key_map, metadata, publish
from kimi_prov.on_host.system import applied_record

LIMIT = {"limits": {"requests_per_day": 5}}
DAMAGES = {
    "truncated": lambda text: text[:20],
    "empty": lambda text: "",
    "zeros": lambda text: "\0" * len(text),
    "of another version": lambda text: text.replace("v1", "v9"),
    "no object": lambda text: "[]",
    "without keys": lambda text: '{"schema": "kimi-prov/key-book/v1"}',
    "a row of another form": lambda text: text.replace('"limits": {', '"limits": 5, "x": {'),
    "deeply nested": lambda text: "[" * 100_000,
}
ACTS = {
    "apply": lambda paths: publish.ensure(paths, {"team": "d" * 64}),
    "key --add": lambda paths: publish.add(paths, "another", {}),
    "key --set": lambda paths: publish.change(paths, "team", LIMIT),
    "key --rotate": publish.rotate,
    "key --remove": lambda paths: publish.revoke(paths, "alice"),
}


@pytest.fixture
def paths(tmp_path):
    """A machine with two added keys, and one of the inventory that has ended and has a limit."""
    found = Paths(tmp_path)
    found.proxy.mkdir(parents=True)
    publish.ensure(found, {"team": "d" * 64})
    for name in ("alice", "bob"):
        publish.add(found, name, LIMIT)
    publish.change(found, "team", {"ends": 5, **LIMIT})
    return found


def read_maps(paths):
    return paths.key_map.read_text(), paths.key_rules.read_text()


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_book_ends_the_command_and_is_kept(paths, damage, act):
    before = read_maps(paths)
    damaged = DAMAGES[damage](paths.key_book.read_text())
    paths.key_book.write_text(damaged)
    for _ in range(2):
        with pytest.raises(HostError) as raised:
            ACTS[act](paths)
        assert str(paths.key_book) in raised.value.message
        assert "kimi-prov restore" in raised.value.fix
        assert f"sudo rm {paths.key_book}" in raised.value.fix
        assert read_maps(paths) == before
    copies = list(paths.keys.glob("book.json.broken-*"))
    assert [copy.read_text() for copy in copies] == [damaged]
    assert paths.key_book.read_text() == damaged


@pytest.mark.parametrize("what", ["a link", "a directory", "a dangling link"])
def test_what_is_no_file_is_damage_too(paths, tmp_path, what):
    before = read_maps(paths)
    text = paths.key_book.read_text()
    paths.key_book.unlink()
    if what == "a directory":
        paths.key_book.mkdir()
    else:
        elsewhere = tmp_path / "elsewhere.json"
        paths.key_book.symlink_to(elsewhere)
        if what == "a link":
            elsewhere.write_text(text)
    with pytest.raises(HostError, match=r"book\.json is damaged"):
        publish.ensure(paths, {"team": "d" * 64})
    assert read_maps(paths) == before


def test_the_way_back_without_a_backup_loses_no_key_and_no_rule(paths):
    before = read_maps(paths)
    paths.key_book.write_text("")
    paths.key_book.unlink()
    assert publish.ensure(paths, {"team": "d" * 64})["removed"] == []
    assert read_maps(paths) == before
    assert {*metadata.list_added(metadata.read(paths))} == {"alice", "bob"}
    assert publish.ensure(paths, {"team": "d" * 64})["changed"] is False


def test_a_damaged_map_of_rules_is_written_again_from_the_book(paths):
    _, rules = read_maps(paths)
    paths.key_rules.write_text(rules[:9])
    publish.ensure(paths, {"team": "d" * 64})
    assert read_maps(paths)[1] == rules


def test_a_lost_book_is_never_read_from_a_damaged_map_of_rules(paths):
    keys, rules = read_maps(paths)
    paths.key_book.unlink()
    for damaged in (rules[:-3], rules + "name\n", "\0" * 20):
        paths.key_rules.write_text(damaged)
        with pytest.raises(HostError, match=r"rules\.map is damaged"):
            publish.ensure(paths, {"team": "d" * 64})
        assert read_maps(paths) == (keys, damaged)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text[: text.index("\n") + 1],
        lambda text: "",
        lambda text: "\0" * 90,
    ],
)
def test_a_damaged_map_of_hashes_is_read_from_the_record_of_the_apply(paths, damage):
    keys = paths.key_map.read_text()
    known = {"schema": applied_record.SCHEMA}
    applied_record.write(paths, {**known, **publish.describe_keys(key_map.parse_map(keys))})
    publish.forget(paths)
    paths.key_map.write_text(damage(keys))
    assert publish.ensure(paths, {"team": "d" * 64})["created"] == []
    assert paths.key_map.read_text() == keys
    assert list(paths.proxy.glob("keys.map.broken-*"))


def test_a_damaged_map_of_hashes_without_a_record_ends_the_command(paths):
    paths.key_map.write_text(paths.key_map.read_text()[:70])
    publish.forget(paths)
    with pytest.raises(HostError, match=r"keys\.map is damaged"):
        publish.ensure(paths, {"team": "d" * 64})
    assert not paths.operator_new.exists()


@pytest.mark.parametrize("text", ["sk-kimi-abc\n", "", "\0" * 20])
def test_a_part_of_the_operators_key_becomes_no_key(paths, text):
    before = read_maps(paths)
    paths.operator_new.write_text(text)
    for act in (publish.show, lambda paths: publish.ensure(paths, {"team": "d" * 64})):
        with pytest.raises(HostError) as raised:
            act(paths)
        assert "--rotate" in raised.value.fix
    assert read_maps(paths) == before
    publish.rotate(paths)
    assert publish.show(paths)


def test_a_part_of_the_machines_own_key_becomes_no_key(paths):
    paths.verify_key.write_text("sk\n")
    publish.ensure(paths, {"team": "d" * 64})
    assert publish.hash_key("sk") not in paths.key_map.read_text()


def test_a_damaged_record_ends_a_command_before_it_changes_a_key(paths):
    before = read_maps(paths)
    paths.state.mkdir(parents=True, exist_ok=True)
    paths.applied.write_text(json.dumps({"schema": applied_record.SCHEMA})[:9])
    with pytest.raises(HostError, match=r"applied\.json is damaged"):
        publish.add(paths, "another", {})
    assert read_maps(paths) == before
