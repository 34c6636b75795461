"""What nobody can make again: a damaged file is told, kept, and never taken for an absent one."""

from __future__ import annotations

import ast
import json
import os
import stat
from pathlib import Path

import pytest

import kimi_prov.on_host
from kimi_prov.contract import paths as layout
from kimi_prov.contract import state_files
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host import destroy
from kimi_prov.on_host.endpoint import firewall, stop_log, stop_state
from kimi_prov.on_host.history import entries, report
from kimi_prov.on_host.keys import publish
from kimi_prov.on_host.monitor import ensure as monitor
from kimi_prov.on_host.probe import installed
from kimi_prov.on_host.system import applied_record, kept_state
from kimi_prov.on_host.system.machine import Machine

FIREWALL = {
    "manager": "nftables",
    "ports": [8443],
    "ipv4": [],
    "ipv6": [],
    "peers_ipv4": [],
    "peers_ipv6": [],
    "peer_ports": [],
    "metrics": None,
}
# A whole file of each, and who reads it for a command.
WHOLE = {
    layout.KEY_METADATA: {"schema": "kimi-prov/key-book/v1", "keys": {}},
    layout.HISTORY_ENTRY: {"schema": entries.SCHEMA, "number": 1, "kind": "apply"},
    layout.APPLIED: {"schema": applied_record.SCHEMA, "certificate_sha256": "ab"},
    layout.SWITCH: {"phase": "writing", "from": 1, "to": 2},
    layout.BEFORE: {"services": {}},
    layout.FIREWALL_STATE: {"rules": []},
    layout.DRIVER_STATE: {"version": "580.1"},
    layout.WEB_ADMIN_NEW: {"email": "admin@localhost", "password": "secret"},
    layout.MONITOR_BEFORE: {"user_existed": True},
}
READERS = {
    layout.KEY_METADATA: lambda paths: publish.ensure(paths, {}),
    layout.HISTORY_ENTRY: report.collect,
    layout.APPLIED: lambda paths: publish.ensure(paths, {}),
    layout.SWITCH: report.collect,
    layout.BEFORE: lambda paths: destroy.Undo(paths, check=True, purge_weights=False),
    layout.FIREWALL_STATE: lambda paths: firewall.ensure(paths, FIREWALL, check=True),
    layout.DRIVER_STATE: lambda paths: destroy.Undo(
        paths, check=True, purge_weights=False
    ).driver(),
    layout.WEB_ADMIN_NEW: lambda paths: publish.main(["show"]),
    layout.MONITOR_BEFORE: lambda paths: monitor.remove_all(paths, check=True),
}
DAMAGES = {
    "truncated": lambda path: path.write_text(path.read_text()[:12]),
    "empty": lambda path: path.write_text(""),
    "zeros": lambda path: path.write_text("\0" * 40),
    "a list": lambda path: path.write_text("[1]"),
    "a text": lambda path: path.write_text('"text"'),
    "no UTF-8": lambda path: path.write_bytes(b"\xff\xfe{}"),
    "nested": lambda path: path.write_text("[" * 100_000),
    "a link": lambda path: path.symlink_to(path.rename(path.with_suffix(".old"))),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}
# Files of the machine's state that hold no JSON of ours.
OTHERS = {layout.KEYS, layout.HISTORY, layout.STARTED, layout.STATE, layout.PROXY_LOCK}


def test_every_file_of_the_state_is_sorted():
    """A new path has to be sorted: can it be made again?"""
    sorted_files = [
        *(*state_files.KEPT, *state_files.STOPS, *state_files.LOGS),
        *(*state_files.EXISTENCE, *state_files.REMADE),
    ]
    assert len(sorted_files) == len({*sorted_files})
    known = {value for value in vars(layout).values() if isinstance(value, str)}
    documents = {name for name in known if name.endswith((".json", ".db"))}
    documents |= {name for name in known if name.startswith(f"{layout.STATE}/")} - OTHERS
    documents |= {layout.WEB_ADMIN_NEW}
    assert documents == {*sorted_files}
    assert {*WHOLE} == {*READERS} == {*state_files.KEPT}


def list_names(call):
    """List the names in the arguments of a call."""
    for argument in call.args:
        for part in ast.walk(argument):
            if isinstance(part, (ast.Attribute, ast.Name)):
                yield part.attr if isinstance(part, ast.Attribute) else part.id
            elif isinstance(part, ast.Constant):
                yield str(part.value)


def test_no_module_reads_kept_state_as_if_damage_were_absence():
    """`read_json`, for which damage is absence, never gets the path of a kept file."""
    kept = {str(name) for name in state_files.KEPT}
    names = {key for key, value in vars(layout).items() if str(value) in kept}
    names |= {key for key, value in vars(Paths).items() if getattr(value, "_name", None) in kept}
    names |= {"ENTRY", "entry.json", "applied.json"}
    top = Path(kimi_prov.on_host.__file__).parent
    found = [
        f"{file.relative_to(top)}:{call.lineno}"
        for file in sorted(top.rglob("*.py"))
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).rpartition(".")[2] == "read_json"
        and names & {*list_names(call)}
    ]
    assert found == []


def place(paths, name):
    path = paths.locate(name.replace("NNNN", "0001"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(WHOLE[name]))
    return path


@pytest.fixture
def paths(tmp_path, monkeypatch):
    found = Paths(tmp_path)
    monkeypatch.setattr(publish, "Paths", lambda: found)
    for folder in (found.proxy, found.state, found.keys):
        folder.mkdir(parents=True, exist_ok=True)
    return found


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", state_files.KEPT)
def test_damage_ends_the_command_with_the_way_back(paths, name, damage):
    path = place(paths, name)
    assert kept_state.read_file(path, state_files.KEPT[name]) == WHOLE[name]
    DAMAGES[damage](path)
    for _ in range(2):
        with pytest.raises(HostError) as raised:
            READERS[name](paths)
        assert f"{path} is damaged" in raised.value.message
        assert "kimi-prov" in raised.value.fix or "run the command again" in raised.value.fix
        assert f"sudo rm {path}" in raised.value.fix or f"sudo rm -r {path.parent}" in (
            raised.value.fix
        )
    if stat.S_ISREG(path.lstat().st_mode):
        (copy,) = path.parent.glob(f"{path.name}.broken-*")
        assert copy.read_bytes() == path.read_bytes()
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", state_files.KEPT)
def test_an_absent_file_is_no_damage(paths, name):
    assert kept_state.read_file(paths.locate(name), state_files.KEPT[name]) == {}


def test_the_copies_of_a_file_are_bounded(paths):
    path = place(paths, layout.APPLIED)
    for day in range(9):
        path.write_text(f"damage {day}")
        os.utime(path, (day * 86400, day * 86400))
        with pytest.raises(HostError):
            applied_record.read(paths)
    kept = sorted(paths.state.glob("applied.json.broken-*"))
    assert [copy.read_text() for copy in kept] == ["damage 6", "damage 7", "damage 8"]


@pytest.mark.parametrize("name", [layout.BEFORE, layout.DRIVER_STATE])
def test_the_facts_of_a_machine_take_no_damage_for_absence(paths, name):
    machine = Machine(str(paths.root))
    assert installed.describe_installation(machine, {})["before"] is None
    place(paths, name).write_text("{")
    with pytest.raises(HostError, match="is damaged"):
        installed.describe_installation(machine, {})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"state": 5}'])
def test_a_damaged_stop_state_is_a_stop(paths, text):
    paths.stopped.write_text(text)
    assert stop_state.read(paths)["state"] == stop_state.STOPPED
    stop_state.publish(paths)
    assert "model_stopped" in paths.rest_map.read_text()
    assert list(paths.state.glob("stopped.json.broken-*"))
    stop_state.clear(paths)
    assert stop_state.read(paths) == {}


def test_figures_begin_anew_and_the_damaged_ones_are_kept(paths):
    paths.rests.write_text('{"times": 5, "seco')
    assert stop_log.read(paths)["times"] == 0
    stop_state.write(paths, stop_state.build_state(stop_state.STOPPED, "a test"))
    stop_state.clear(paths)
    assert stop_log.read(paths)["times"] == 1
    (copy,) = paths.state.glob("rests.json.broken-*")
    assert copy.read_text() == '{"times": 5, "seco'
