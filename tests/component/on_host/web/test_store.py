"""What the page keeps: copied while it writes, put back whole or not at all."""

from __future__ import annotations

import gzip
import io
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import threading
from contextlib import closing

import pytest

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.web import store

# A page that is killed after its last commit.
KILLED = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("pragma journal_mode=wal")
database.execute("create table user (id text primary key)")
database.execute("create table auth (id text primary key)")
database.execute("create table chat (id text primary key, chat text)")
database.execute("insert into user values ('admin')")
database.executemany("insert into chat values (?, ?)", ((text, text) for text in sys.argv[2:]))
database.commit()
os._exit(0)
"""


def make_data(folder, chats=("first",), uploads=None):
    """A page's folder, its database in the form that the page leaves after a kill: with a WAL."""
    folder.mkdir()
    subprocess.run([sys.executable, "-c", KILLED, folder / "webui.db", *chats], check=True)
    assert (folder / "webui.db-wal").stat().st_size
    (folder / "uploads").mkdir()
    for name, content in (uploads or {}).items():
        (folder / "uploads" / name).write_bytes(content)
    return folder


def chats(folder):
    with closing(sqlite3.connect(folder / "webui.db")) as database:
        return sorted(row[0] for row in database.execute("select chat from chat"))


def contents(folder):
    """Every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def listed(folder):
    return {path.name for path in folder.iterdir()}


def uploads(folder):
    return contents(folder / "uploads")


def archive_of(folder, version="0.12.4"):
    out = io.BytesIO()
    told = store.save(folder, out, version)
    return out.getvalue(), told


def restore(folder, archive):
    told = store.stage(folder, io.BytesIO(archive))
    store.switch(folder)
    store.finish(folder)
    return told


def tarred(members, tail=b""):
    """An archive of somebody else's making."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members:
            if isinstance(name, str):
                name = tarfile.TarInfo(name)  # noqa: PLW2901
                name.size = len(content)
            archive.addfile(name, io.BytesIO(content))
    return gzip.compress(out.getvalue() + tail)


def test_a_backup_is_restored_on_another_machine(tmp_path):
    here = make_data(tmp_path / "here", ["one", "two"], {"a_cat.png": b"cat" * 1000})
    archive, told = archive_of(here)
    assert (told["accounts"], told["chats"], told["uploads"]) == (1, 2, 1)
    assert told["left_out"] == []
    there = tmp_path / "there"
    there.mkdir()
    back = restore(there, archive)
    assert (back["version"], back["accounts"], back["chats"]) == ("0.12.4", 1, 2)
    assert chats(there) == ["one", "two"]
    assert uploads(there) == {"a_cat.png": b"cat" * 1000}
    assert listed(there) == {"webui.db", "uploads"}
    modes = {path.stat().st_mode & 0o077 for path in (*there.rglob("*"),) if path.is_file()}
    assert modes == {0}


def test_a_restore_replaces_what_was_there_and_leaves_nothing_beside(tmp_path):
    old = make_data(tmp_path / "old", ["kept"], {"same": b"1", "gone": b"2"})
    archive, _ = archive_of(old)
    now = make_data(tmp_path / "now", ["later"], {"same": b"other", "stranger": b"3"})
    restore(now, archive)
    assert chats(now) == ["kept"]
    assert uploads(now) == {"same": b"1", "gone": b"2"}
    assert listed(now) == {"webui.db", "uploads"}


def test_going_back_leaves_everything_as_it_was(tmp_path):
    old = make_data(tmp_path / "old", ["kept"], {"same": b"1", "more": b"2"})
    archive, _ = archive_of(old)
    now = make_data(tmp_path / "now", ["later"], {"same": b"other", "own": b"3"})
    store.stage(now, io.BytesIO(archive))
    store.switch(now)
    assert chats(now) == ["kept"]
    store.go_back(now)
    assert chats(now) == ["later"]
    assert uploads(now) == {"same": b"other", "own": b"3"}
    assert listed(now) == {"webui.db", "uploads"}


def test_going_back_to_a_machine_that_had_none(tmp_path):
    archive, _ = archive_of(make_data(tmp_path / "old", uploads={"a": b"1"}))
    now = tmp_path / "now"
    now.mkdir()
    store.stage(now, io.BytesIO(archive))
    store.switch(now)
    store.go_back(now)
    assert contents(now) == {}


@pytest.mark.parametrize("step", range(12))
def test_a_cut_at_any_step_leaves_the_old_or_the_new_whole(tmp_path, step):
    """Each system call that changes a name is a step; after it the power fails."""
    old = make_data(tmp_path / "old", ["kept"], {"same": b"1", "more": b"2"})
    archive, _ = archive_of(old)
    now = make_data(tmp_path / "now", ["later"], {"same": b"1", "own": b"3"})
    (tmp_path / "archive").write_bytes(archive)
    script = (
        "import os, pathlib, sys\n"
        "from kimi_prov.on_host.web import store\n"
        "left = int(sys.argv[3])\n"
        "def cut(event, _args):\n"
        "    global left\n"
        "    if event in ('os.rename', 'os.link', 'os.remove'):\n"
        "        left -= 1\n"
        "        if left < 0: os._exit(9)\n"
        "data = pathlib.Path(sys.argv[1])\n"
        "store.stage(data, open(sys.argv[2], 'rb'))\n"
        "sys.addaudithook(cut)\n"
        "store.switch(data)\n"
        "store.finish(data)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, now, tmp_path / "archive", str(step)], check=False
    )
    assert done.returncode == 9
    found = chats(now)
    assert found in (["later"], ["kept"])
    # What the accounts of that database name is there, whatever else is.
    wanted = {"same": b"1", "own": b"3"} if found == ["later"] else {"same": b"1", "more": b"2"}
    assert wanted.items() <= uploads(now).items()
    # The next one is not held up by what this one left.
    restore(now, archive)
    assert (chats(now), uploads(now)) == (["kept"], {"same": b"1", "more": b"2"})
    assert listed(now) == {"webui.db", "uploads"}


def test_a_copy_while_the_page_writes_is_of_one_moment(tmp_path):
    here = make_data(tmp_path / "here")
    stop = threading.Event()
    written = threading.Event()

    def write():
        with closing(sqlite3.connect(here / "webui.db", timeout=60)) as database:
            number = 0
            while not stop.is_set():
                # The two belong together: a copy has both or none.
                database.execute("insert into user values (?)", (f"u{number}",))
                database.execute("insert into chat values (?, 'x')", (f"u{number}",))
                database.commit()
                number += 1
                written.set()

    page = threading.Thread(target=write)
    page.start()
    try:
        assert written.wait(60)
        for number in range(5):
            archive, told = archive_of(here)
            assert told["accounts"] == told["chats"], number
            there = tmp_path / f"there{number}"
            there.mkdir()
            restore(there, archive)
            with closing(sqlite3.connect(there / "webui.db")) as database:
                lone = (
                    "select count(*) from user "
                    "where id != 'admin' and id not in (select id from chat)"
                )
                assert database.execute(lone).fetchone() == (0,)
    finally:
        stop.set()
        page.join()


def test_an_upload_that_comes_while_the_backup_is_made_is_in_it(tmp_path, monkeypatch):
    here = make_data(tmp_path / "here", uploads={"early": b"1", "grows": b"1", "goes": b"1"})
    copied = store._make_copy

    def meanwhile(data):
        (data / "uploads" / "late").write_bytes(b"2")
        (data / "uploads" / "grows").write_bytes(b"11")
        (data / "uploads" / "goes").unlink()
        return copied(data)

    monkeypatch.setattr(store, "_make_copy", meanwhile)
    archive, _ = archive_of(here)
    there = tmp_path / "there"
    there.mkdir()
    restore(there, archive)
    assert uploads(there) == {"early": b"1", "grows": b"11", "late": b"2", "goes": b"1"}


def test_a_link_in_the_folder_is_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of somebody else")
    here = make_data(tmp_path / "here")
    (here / "uploads" / "link").symlink_to(secret)
    archive, told = archive_of(here)
    assert told["uploads"] == 0
    assert b"somebody" not in gzip.decompress(archive)


def test_a_database_is_copied_and_put_back(tmp_path):
    here = make_data(tmp_path / "here", ["before"])
    out = io.BytesIO()
    assert store.copy_database(here, out)
    with closing(sqlite3.connect(here / "webui.db")) as database:
        database.execute("insert into chat values ('x', 'migrated')")
        database.commit()
    store.replace_database(here, io.BytesIO(out.getvalue()))
    assert chats(here) == ["before"]
    assert listed(here) == {"webui.db", "uploads"}
    (tmp_path / "none").mkdir()
    assert not store.copy_database(tmp_path / "none", io.BytesIO())


def test_a_database_in_use_is_not_replaced(tmp_path, monkeypatch):
    here = make_data(tmp_path / "here", ["running"])
    archive, _ = archive_of(make_data(tmp_path / "old", ["kept"]))
    store.stage(here, io.BytesIO(archive))
    with closing(sqlite3.connect(here / "webui.db")) as page:
        page.execute("begin immediate")
        monkeypatch.setattr(store, "_TIMEOUT_S", 0.0)
        with pytest.raises(HostError, match="in use"):
            store.switch(here)
    store.go_back(here)
    assert chats(here) == ["running"]


def test_a_broken_database_is_replaced_and_comes_back_as_it_was(tmp_path):
    archive, _ = archive_of(make_data(tmp_path / "old", ["kept"]))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "webui.db").write_bytes(b"no database" * 100)
    before = contents(broken)
    store.stage(broken, io.BytesIO(archive))
    store.switch(broken)
    assert chats(broken) == ["kept"]
    store.go_back(broken)
    assert contents(broken) == before
    restore(broken, archive)
    assert chats(broken) == ["kept"]


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good") / "data"
    return archive_of(make_data(folder, uploads={"a": os.urandom(5000)}))[0]


def refused(tmp_path, archive, words):
    """Nothing of a bad archive is put in place, and nothing of it stays."""
    now = make_data(tmp_path / "now", ["present"], {"own": b"1"})
    before = contents(now)
    with pytest.raises(HostError, match=words) as caught:
        store.stage(now, io.BytesIO(archive))
    assert contents(now) == before
    assert caught.value.fix


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.9, 0.999])
def test_half_an_archive_is_refused(tmp_path, good, part):
    refused(tmp_path, good[: int(len(good) * part)], "damaged|incomplete")


@pytest.mark.parametrize("at", [20, 1000, -2000, -6])
def test_a_damaged_archive_is_refused(tmp_path, good, at):
    broken = bytearray(good)
    broken[at] ^= 0xFF
    refused(tmp_path, bytes(broken), "damaged|not as the archive|which no backup has|broken")


def link(name, target, kind=tarfile.SYMTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "member",
    [
        ("../webui.db", b"x"),
        ("/etc/cron.d/x", b"x"),
        ("uploads/../../x", b"x"),
        ("uploads/./x", b"x"),
        ("uploads//x", b"x"),
        ("uploads/" + "d/" * 40 + "x", b"x"),
        ("other", b"x"),
        (link("uploads/x", "/etc/shadow"), b""),
        (link("webui.db", "/etc/shadow", tarfile.LNKTYPE), b""),
        (link("uploads/x", "", tarfile.FIFOTYPE), b""),
        (link("uploads/x", "", tarfile.CHRTYPE), b""),
        (link("uploads", "", tarfile.DIRTYPE), b""),
    ],
)
def test_what_no_backup_has_is_refused(tmp_path, member):
    refused(tmp_path, tarred([member]), "which no backup has")


def manifest(**more):
    return ("manifest.json", json.dumps({"schema": store.SCHEMA, "files": {}, **more}).encode())


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([], "incomplete"),
        ([manifest()], "has no webui.db"),
        ([manifest(schema="other/v9")], "has the form other/v9"),
        ([("manifest.json", b"[]")], "incomplete"),
        ([("manifest.json", b"[" * 100_000)], "not a backup|damaged"),
        ([("uploads/a", b"1"), manifest()], "uploads/a is not as"),
        ([manifest(files={"webui.db": 7})], "webui.db is not as"),
        ([manifest(files=7)], "has no webui.db"),
    ],
)
def test_an_archive_that_contradicts_itself_is_refused(tmp_path, members, words):
    refused(tmp_path, tarred(members), words)


def test_another_programs_database_is_refused(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    with closing(sqlite3.connect(other / "webui.db")) as database:
        for table in ("user", "chat"):
            database.execute(f"create table {table} (id text)")
        database.commit()
    archive, _ = archive_of(other)
    refused(tmp_path, archive, "it has no auth")


def test_an_archive_larger_than_the_disk_is_refused_before_it_is_written(tmp_path):
    """A header may claim any size; nothing of it is in the archive."""
    info = tarfile.TarInfo("uploads/huge")
    info.size = 1 << 60
    refused(tmp_path, gzip.compress(info.tobuf()), "no space on the disk")
