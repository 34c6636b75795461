"""Which files a role writes, and which options of roles an inventory may not set."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.ansible import files, role_options
from kimi_prov.errors import UserError
from kimi_prov.packaging import resources

if TYPE_CHECKING:
    from pathlib import Path

PATH = "/etc/x.conf"


def facts(text: str, **other: str) -> dict[str, Any]:
    """Facts of a machine that has a file with this text."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    there = {"sha256": digest, "owner": "root", "group": "root", "mode": "0644"}
    return {"kimi": {"files": {PATH: {**there, **other}}}}


def test_a_file_that_is_in_place_is_not_written_again() -> None:
    assert files.find_differing([{"dest": PATH, "content": "a"}], facts("a")) == []


@pytest.mark.parametrize(
    "found",
    [
        facts("b"),
        facts("a", mode="0600"),
        facts("a", owner="daemon"),
        facts("a", group="daemon"),
        {"kimi": {"files": {PATH: None}}},
        {"kimi": {"files": {}}},
        {"kimi": {}},
    ],
    ids=["content", "mode", "owner", "group", "absent", "unknown", "old facts"],
)
def test_a_file_that_differs_in_anything_is_written_whole(found: dict[str, Any]) -> None:
    [file] = files.find_differing([{"dest": PATH, "content": "a"}], found)
    assert file == {
        "dest": PATH,
        "content": "a",
        "owner": "root",
        "group": "root",
        "mode": "0644",
    }


def test_a_file_of_the_control_machine_is_compared_by_its_bytes(tmp_path: Path) -> None:
    source = tmp_path / "ca.pem"
    source.write_bytes(b"\xff\n")
    wanted = [{"dest": PATH, "src": str(source)}]
    digest = hashlib.sha256(b"\xff\n").hexdigest()
    assert files.find_differing(wanted, facts("", sha256=digest)) == []
    assert [file["dest"] for file in files.find_differing(wanted, facts(""))] == [PATH]


@pytest.mark.parametrize(
    ("found", "state", "differ"),
    [("a", "active", False), ("b", "active", True), ("a", "inactive", True), ("a", None, True)],
    ids=["all of it", "another file", "a unit that is down", "an unknown unit"],
)
def test_units_differ_where_a_file_is_another_or_a_unit_is_not_up(
    found: str, state: str | None, differ: bool
) -> None:
    machine = facts(found)
    machine["kimi"]["units"] = {"x.timer": state} if state else {}
    wanted = [{"dest": PATH, "content": "a"}]
    assert files.check_units_differ(machine, wanted, ["x.timer"]) is differ


@pytest.mark.parametrize("state", ["active", "inactive", None])
def test_units_that_are_not_wanted_differ_where_the_machine_knows_one(state: str | None) -> None:
    machine = facts("a")
    machine["kimi"]["units"] = {"x.timer": state} if state else {}
    assert files.check_units_differ(machine, [], ["x.timer"], False) is bool(state)


def test_an_option_of_a_role_is_refused_with_its_line() -> None:
    options = role_options.find_options(["serve_stop_timeout_s", "kimi_model", "serve_unknown"])
    assert list(options) == ["serve_stop_timeout_s"]
    role_options.check_values({"serve_stop_timeout_s": 30}, options, {}.get)
    places = {"serve_stop_timeout_s": "all.yml:7"}
    with pytest.raises(UserError) as raised:
        role_options.check_values({"serve_stop_timeout_s": "soon"}, options, places.get)
    assert "all.yml:7" in str(raised.value)
    assert "serve_stop_timeout_s" in str(raised.value)
    assert "soon" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nvidia_driver_reboot_okay", "nvidia_driver_reboot_ok"),
        ("proxy_max_conections", "proxy_max_connections"),
        ("serve_stop_timeout", "serve_stop_timeout_s"),
        ("weights_reverfy", "weights_reverify"),
    ],
)
def test_a_misspelt_option_of_a_role_is_refused_with_the_right_name(name: str, meant: str) -> None:
    with pytest.raises(UserError) as raised:
        role_options.check_names(["kimi_model", name], "node1", {name: "all.yml:7"}.get)
    assert f"all.yml:7: unknown variable {name}; did you mean {meant}?" in str(raised.value)
    with pytest.raises(UserError, match=r"^host node1: "):
        role_options.check_names([name], "node1", {}.get)


@pytest.mark.parametrize(
    "name",
    [
        "proxy_env",
        "proxy_connect_timeout_s",
        "update_window",
        "update_reboot",
        "reboot_timeout",
        "monitor_ports",
        "firewall_zone",
        "metrics_interval_s",
        "serve_stop_timeout_s",
    ],
)
def test_words_of_a_site_s_own_and_options_pass(name: str) -> None:
    role_options.check_names([name], "node1", {}.get)


def test_nothing_of_the_product_itself_is_taken_for_a_misspelt_option() -> None:
    folder = resources.find_root()
    texts = [
        path.read_text(encoding="utf-8")
        for part in ("roles", "playbooks")
        for path in (folder / part).rglob("*")
        if path.is_file()
    ]
    words = {word for text in texts for word in re.findall(r"\b_*[a-z][a-z0-9_]+\b", text)}
    role_options.check_names(words, "node1", {}.get)
