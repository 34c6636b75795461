"""The table as nft has it."""

from __future__ import annotations

import json

import pytest

from kimi_prov.contract import paths as layout
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import firewall
from kimi_prov.on_host.system import applied_record

WISH = {"ports": [8000], "ipv4": ["10.0.0.0/8", "192.0.2.7/32"], "ipv6": ["fd00::/8"]}


def chain(family, table, policy, hook="input"):
    entry = {"family": family, "table": table, "name": "c", "hook": hook, "type": "filter"}
    return {"chain": {**entry, "policy": policy, "prio": 0}}


def rule(family, table, right, verdict, protocol="tcp"):
    left = {"payload": {"protocol": protocol, "field": "dport"}}
    match = {"match": {"op": "==", "left": left, "right": right}}
    expression = [match, {"counter": None}, {verdict: None}]
    return {"rule": {"family": family, "table": table, "chain": "c", "expr": expression}}


TABLE = (
    "table inet kimi {{\n\tset challenge {{\n\t\tflags timeout{}\n\t}}\n"
    "\tchain guard {{\n{}\t}}\n}}\n"
)
OPEN = "\n\t\telements = { 80 timeout 15m expires 14m }"


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """A machine whose nft lists what a file holds, and whose firewall's unit runs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    listing = tmp_path / "listing"
    (programs / "nft").write_text(f"#!/bin/sh\nexec cat {listing}\n")
    state = "Id=kimi-firewall.service\\nActiveState=active\\nUnitFileState=enabled\\n"
    (programs / "systemctl").write_text(f"#!/bin/sh\nprintf '{state}'\n")
    for file in programs.iterdir():
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    paths = Paths(tmp_path)
    paths.firewall.parent.mkdir(parents=True)
    paths.firewall.write_text("rules")
    listing.write_text(TABLE.format("", "\t\tdrop\n"))
    row = {"path": layout.FIREWALL, "sha256": firewall.normalize_table("rules")}
    table = {"table_sha256": firewall.normalize_table(firewall.read_table())}
    paths.applied.parent.mkdir(parents=True)
    paths.applied.write_text(
        json.dumps({"schema": applied_record.SCHEMA, "files": [row], "firewall": table})
    )
    return paths, listing


def test_a_table_as_it_was_applied_is_left_also_while_a_certificate_is_ordered(loaded):
    paths, listing = loaded
    assert firewall.guard(paths, check=True) is False
    listing.write_text(TABLE.format(OPEN, "\t\tdrop\n"))
    assert firewall.guard(paths, check=True) is False


def test_a_table_that_somebody_changed_is_loaded_again(loaded):
    paths, listing = loaded
    listing.write_text(TABLE.format("", "\t\taccept\n\t\tdrop\n"))
    assert firewall.guard(paths, check=True) is True
    # Rules that have just been written were loaded with it.
    paths.firewall.write_text("other rules")
    assert firewall.guard(paths, check=True) is False
    # An earlier version kept no record.
    paths.firewall.write_text("rules")
    paths.applied.unlink()
    assert firewall.guard(paths, check=True) is False


NEAR = {"port": 29600, "ipv4": ["10.0.0.2"], "ipv6": ["fd00::2"]}


@pytest.fixture
def ufw(tmp_path, monkeypatch):
    """A machine whose ufw keeps a list of what it was told, and whose nft notes what it hears."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ufw").write_text(
        f"#!/bin/sh\ncd {tmp_path}\n"
        'if [ "$1" = status ]; then echo "Status: active"; cat lines 2>/dev/null; exit 0; fi\n'
        'echo "$9/tcp ALLOW $5 # ${11}" >> lines\n'
    )
    (programs / "nft").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/nft\n')
    for file in programs.iterdir():
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return tmp_path


def test_neighbours_are_let_in_before_the_firewall_s_turn_and_once(ufw):
    paths = Paths(ufw)
    settings = {**WISH, "manager": "ufw", "neighbours": {**NEAR, "ipv6": []}}
    firewall.admit(paths, settings)
    firewall.admit(paths, settings)
    assert (ufw / "lines").read_text() == "29600/tcp ALLOW 10.0.0.2 # kimi-prov\n"
    assert "add element inet kimi neighbours_ipv4 { 10.0.0.2 }" in (ufw / "nft").read_text()
    (rule,) = json.loads(paths.firewall_state.read_text())["rules"]
    assert rule == {"manager": "ufw", "from": "10.0.0.2", "port": "29600"}
    # What is open to nobody near needs nothing.
    firewall.admit(paths, {**WISH, "manager": "ufw"})
    assert (ufw / "lines").read_text().count("\n") == 1
