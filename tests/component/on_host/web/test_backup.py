"""An archive of the page's data, as root makes it and lets it be fetched; what does not fit."""

from __future__ import annotations

import getpass
import json
import os
import sqlite3
import stat
from contextlib import closing

import pytest

from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.system import transfer
from kimi_prov.on_host.web import backup
from kimi_prov.packaging.zipapp import build_zipapp


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory):
    return str(build_zipapp(tmp_path_factory.mktemp("lib") / "kimi-target.pyz"))


@pytest.fixture
def machine(tmp_path, zipapp, monkeypatch):
    """A machine below a folder, with a page that kept one chat; its user is who runs the test."""
    monkeypatch.setattr(layout, "ZIPAPP", zipapp)
    paths = Paths(tmp_path)
    paths.transfer.parent.mkdir(parents=True)
    data = tmp_path / "data"
    data.mkdir()
    with closing(sqlite3.connect(data / "webui.db")) as database:
        for table in ("user", "auth", "chat"):
            database.execute(f"create table {table} (id text)")
        database.execute("insert into chat values ('one')")
        database.commit()
    web = {"data": str(data), "user": getpass.getuser(), "version": "0.12.4"}
    paths.plan.parent.mkdir(parents=True)
    paths.plan.write_text(json.dumps({"web": web}))
    return paths


def test_an_archive_is_for_the_one_who_fetches_it_and_goes_with_the_end(machine):
    told = backup.make_archive(machine, os.geteuid())
    archive = machine.transfer / transfer.ARCHIVE
    assert (told["chats"], told["version"], told["bytes"]) == (1, "0.12.4", archive.stat().st_size)
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert archive.stat().st_uid == os.geteuid()
    # What an ended one left is no hindrance.
    assert backup.make_archive(machine, os.geteuid())["chats"] == 1
    transfer.remove_archive(machine)
    assert not machine.transfer.exists()


@pytest.mark.parametrize("plan", ["", "{}", '{"web": null}'])
def test_a_machine_without_a_page_says_so(machine, plan):
    machine.plan.write_text(plan)
    with pytest.raises(HostError, match="there is no web UI on this machine") as caught:
        backup.make_archive(machine, 0)
    assert "kimi_web_ui: true" in caught.value.fix
    assert not machine.transfer.exists()


def test_a_machine_behind_a_gateway_says_who_has_the_page(machine):
    machine.plan.write_text('{"web": null, "gateways": [{"host": "gw1"}]}')
    with pytest.raises(HostError, match="gw1 answers clients: the web UI is there"):
        backup.make_archive(machine, 0)


def test_a_page_that_kept_nothing_yet_says_so(machine):
    (machine.root / "data" / "webui.db").unlink()
    with pytest.raises(HostError, match="the web UI has stored nothing yet"):
        backup.make_archive(machine, os.geteuid())


def test_a_folder_that_is_gone_is_told(machine):
    plan = json.loads(machine.plan.read_text())
    plan["web"]["user"] = "nobody-of-this-name"
    machine.plan.write_text(json.dumps(plan))
    with pytest.raises(HostError, match="there is no user nobody-of-this-name"):
        backup.make_archive(machine, os.geteuid())


def test_a_database_is_copied_for_an_upgrade_and_put_back(machine, tmp_path):
    web = backup.read_planned(machine)
    copy = tmp_path / "before.db"
    assert backup.copy_database(web, copy)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    database = tmp_path / "data" / "webui.db"
    database.write_bytes(b"what a failed version made of it")
    backup.restore_database(web, copy)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("select id from chat").fetchall() == [("one",)]
    database.unlink()
    assert not backup.copy_database(web, tmp_path / "none.db")
    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["before.db"]


def test_an_archive_that_was_changed_on_its_way_is_not_unpacked(machine):
    backup.make_archive(machine, os.geteuid())
    with pytest.raises(HostError, match="arrived incomplete"):
        backup.restore(machine, "0" * 64)


def test_a_link_in_the_place_of_the_archive_is_not_followed(machine):
    backup.prepare_folder(machine, os.geteuid())
    (machine.transfer / transfer.ARCHIVE).symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        backup.restore(machine, "0" * 64)


def test_an_archive_of_a_newer_page_is_refused_and_nothing_of_it_stays(machine, tmp_path):
    plan = json.loads(machine.plan.read_text())
    plan["web"]["version"] = "0.13.0"
    machine.plan.write_text(json.dumps(plan))
    told = backup.make_archive(machine, os.geteuid())
    plan["web"]["version"] = "0.12.4"
    machine.plan.write_text(json.dumps(plan))
    with pytest.raises(HostError, match=r"of version 0\.13\.0 of the web UI"):
        backup.restore(machine, told["sha256"])
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["webui.db"]


@pytest.mark.parametrize("version", ["0.12.5", "1.0", "", "x", "0.12.4rc1", "1" * 50, "None"])
def test_a_version_that_is_newer_or_none_is_refused(version):
    with pytest.raises(HostError):
        backup.require_not_newer(version, "0.12.4")


@pytest.mark.parametrize("version", ["0.12.4", "0.9.10", "0.12"])
def test_an_older_version_is_taken(version):
    backup.require_not_newer(version, "0.12.4")
