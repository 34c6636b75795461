"""A host that shall not watch any more loses all of it, also where a run was cut in between."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.monitor import ensure

if TYPE_CHECKING:
    from pathlib import Path

UNITS = ("kimi-prometheus.service", "kimi-alertmanager.service", "kimi-monitor-firewall.service")


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl and an nft that note what they were told; a unit's own ExecStop is not run."""
    for name in ("systemctl", "nft", "userdel"):
        tool = tmp_path / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/told\n')
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    (tmp_path / "told").write_text("")
    return tmp_path / "told"


@pytest.fixture
def watching(tmp_path: Path) -> Paths:
    """What `ensure` leaves on a host."""
    paths = Paths(tmp_path / "root")
    drop_in = paths.monitor_firewall_drop_in
    for path in (
        *(paths.units / name for name in UNITS),
        drop_in,
        paths.monitor_etc / "hosts" / "node1.key",
        paths.monitor_home / "prometheus" / "wal",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    record = {"user_existed": False, "services_ours": ["prometheus.service"]}
    (paths.monitor_home / "before.json").write_text(json.dumps(record))
    return paths


def left(paths: Paths) -> list[str]:
    return sorted(str(path) for path in paths.root.rglob("*") if path.is_file())


def test_units_files_series_and_the_loaded_table_go(watching: Paths, told: Path) -> None:
    assert ensure.remove_all(watching, check=True) == {"changed": True}
    assert (told.read_text(), len(left(watching))) == ("", 7)
    assert ensure.remove_all(watching) == {"changed": True}
    assert left(watching) == []
    assert not watching.monitor_firewall_drop_in.parent.exists()
    assert not watching.monitor_home.exists()
    said = told.read_text().splitlines()
    for name in UNITS:
        assert any("disable --now" in line and name in line for line in said)
    # nftables.service may have loaded it where the unit does not run.
    assert "nft delete table inet kimi_monitor" in said
    assert ensure.remove_all(watching) == {"changed": False}


def test_others_drop_ins_of_the_packet_filter_stay(watching: Paths, told: Path) -> None:
    assert told.exists()
    other = watching.monitor_firewall_drop_in.with_name("kimi-firewall.conf")
    other.write_text("x")
    ensure.remove_all(watching)
    assert left(watching) == [str(other)]


def test_a_run_that_was_cut_leaves_the_unit_by_which_the_next_one_sees_it(
    watching: Paths, told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told.exists()

    def cut(_path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", cut)
        with pytest.raises(KeyboardInterrupt):
            ensure.remove_all(watching)
    # A fact of the machine: the role `metrics` looks for nothing else.
    assert (watching.units / "kimi-prometheus.service").exists()
    assert ensure.remove_all(watching) == {"changed": True}
    assert left(watching) == []


def test_what_stands_without_a_record_goes_and_no_user_with_it(
    watching: Paths, told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record went with its folder in a run that was cut: it said whose the user is."""
    monkeypatch.setattr(ensure, "_is_user", lambda _name: True)
    shutil.rmtree(watching.monitor_home)
    assert ensure.remove_all(watching) == {"changed": True}
    assert left(watching) == []
    assert "userdel" not in told.read_text()
