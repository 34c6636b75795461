"""What of a machine cannot be made again: copied, and put back on a fresh machine."""

from __future__ import annotations

import getpass
import gzip
import hashlib
import io
import json
import os
import shutil
import sqlite3
import stat
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.gateways import SCHEMA
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host import backup
from kimi_prov.on_host.endpoint import tls
from kimi_prov.on_host.history import entries
from kimi_prov.on_host.keys import key_map, metadata, publish
from kimi_prov.on_host.system import archive as archives
from kimi_prov.on_host.system import transfer
from kimi_prov.packaging.zipapp import build_zipapp

NAMES = ["kimi.example.org"]
ISSUED = {"directory_url": "https://ca.test/dir", "names": NAMES, "contact": None}


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory):
    return str(build_zipapp(tmp_path_factory.mktemp("lib") / "kimi-target.pyz"))


@pytest.fixture(scope="module")
def pem():
    return tls.make_self_signed(NAMES)


@pytest.fixture
def make_machine(tmp_path, zipapp, monkeypatch):
    """Make a machine below a folder, as `apply` leaves one; what runs on it is this test's."""
    monkeypatch.setattr(layout, "ZIPAPP", zipapp)
    monkeypatch.setattr(backup.layout, "ACME_USER", getpass.getuser())

    def put_in_place(web):
        for step in ("switch", "finish"):
            backup.web_backup.run_in_folder(web, step)

    monkeypatch.setattr(backup.web_backup, "switch", put_in_place)
    converged = []
    monkeypatch.setattr(backup.converge, "converge", converged.append)

    def make(name, mode="self-signed", chats=(), operator=None, page=True):
        paths = Paths(tmp_path / name)
        for folder in (paths.srv, paths.keys, paths.proxy, paths.state, paths.acme):
            folder.mkdir(parents=True)
        web = None
        if page:
            data = paths.root / "page"
            data.mkdir()
            web = {"data": "/page", "user": getpass.getuser(), "version": "0.12.4"}
            with closing(sqlite3.connect(data / "webui.db")) as database:
                for table in ("user", "auth", "chat"):
                    database.execute(f"create table {table} (id text)")
                database.executemany("insert into chat values (?)", [(text,) for text in chats])
                database.commit()
        plan = {"web": web, "proxy": {"tls": {"mode": mode, "names": NAMES}}, "group": None}
        paths.plan.write_text(json.dumps(plan))
        own = {"operator": operator or f"operator of {name}", "verify": f"verify of {name}"}
        paths.key_map.write_text(
            key_map.render_map({n: publish.hash_key(v) for n, v in own.items()})
        )
        tls.install(paths, tls.make_self_signed(NAMES))
        paths.converged = converged
        return paths

    return make


def carried(machine, there):
    """Make an archive on one machine, and bring it to another; tell both what came of it."""
    made = backup.make_archive(machine, os.geteuid())
    content = (machine.transfer / transfer.ARCHIVE).read_bytes()
    transfer.remove_archive(machine)
    return made, brought(there, content, made["sha256"])


def brought(there, content, sha256):
    place = backup.prepare_folder(there, os.geteuid())["path"]
    Path(place).write_bytes(content)
    return backup.restore(there, sha256)


def chats(machine):
    with closing(sqlite3.connect(machine.root / "page" / "webui.db")) as database:
        return [row[0] for row in database.execute("select id from chat")]


def known(machine):
    return key_map.parse_map(machine.key_map.read_text())


def pictured(machine):
    """Every file of a machine, but for the archives that are carried."""
    return {
        str(path.relative_to(machine.root)): path.read_bytes()
        for path in machine.root.rglob("*")
        if path.is_file() and machine.transfer not in path.parents
    }


def test_a_fresh_machine_gets_keys_certificate_history_and_page(make_machine):
    old, new = make_machine("old", chats=["kept"]), make_machine("new", chats=["its own"])
    certificate = old.tls_pem.read_text()
    applied(old, 1)
    (old.history / "0001" / "files" / "etc").mkdir(parents=True)
    (old.history / "0001" / "files" / "etc" / "kimi").write_text("data from elsewhere")
    made, told = carried(old, new)
    assert (made["keys"], made["history"], made["page"]["chats"]) == (["operator"], 1, 1)
    assert made["hostname"] == os.uname().nodename
    assert {name: told[name] for name in ("keys", "history", "left_out")} == {
        "keys": ["operator"],
        "history": 1,
        "left_out": [],
    }
    assert (
        told["certificate_sha256"]
        == made["certificate_sha256"]
        == tls.compute_fingerprint(certificate)
    )
    assert known(new)["operator"] == publish.hash_key("operator of old")
    # By this one the machine tests itself, and has it in clear: the other's would open nothing.
    assert known(new)["verify"] == publish.hash_key("verify of new")
    assert (new.tls_pem.read_text(), new.tls_crt.read_text()) == (
        certificate,
        tls.extract_certificates(certificate),
    )
    # To read: a way back would write such files as root.
    assert [path.name for path in (new.history / "0001").iterdir()] == [entries.ENTRY]
    assert entries.read(new, 1)["by"] == {"user": "old", "control_host": "c"}
    assert entries.explain_not_restorable(new, entries.read(new, 1)) is not None
    assert chats(new) == ["kept"]
    assert new.converged == [new]
    assert not new.transfer.exists()
    assert stat.S_IMODE(new.key_map.stat().st_mode) == 0o640


def test_a_key_that_nobody_has_seen_is_shown_by_the_new_machine(make_machine):
    old, new = make_machine("old"), make_machine("new")
    unseen = publish.make_key()
    old.operator_new.write_text(unseen + "\n")
    new.operator_new.write_text(publish.make_key() + "\n")
    carried(old, new)
    assert publish.show(new) == unseen
    assert known(new)["operator"] == publish.hash_key(unseen)


def test_a_key_that_somebody_has_is_not_covered_by_the_new_machines(make_machine):
    old, new = make_machine("old"), make_machine("new")
    new.operator_new.write_text(publish.make_key() + "\n")
    carried(old, new)
    publish.ensure(new, {})
    assert known(new)["operator"] == publish.hash_key("operator of old")


def test_the_inventorys_keys_of_now_count(make_machine):
    old, new = make_machine("old"), make_machine("new")
    old.key_map.write_text(
        key_map.render_map({**known(old), "alice": "a" * 64, "bob": "b" * 64, "web": "c" * 64})
    )
    new.key_map.write_text(key_map.render_map({**known(new), "alice": "d" * 64}))
    made, _ = carried(old, new)
    assert made["keys"] == ["alice", "bob", "operator"]
    found = known(new)
    assert (found["alice"], found["bob"], "web" in found) == ("d" * 64, "b" * 64, False)


def test_the_first_password_of_a_page_goes_with_its_accounts(make_machine):
    old, new, third = make_machine("old"), make_machine("new"), make_machine("third")
    admin = json.dumps({"email": "admin@kimi.local", "password": "of the old"})
    old.web_admin_new.write_text(admin)
    new.web_admin_new.write_text("of the new")
    carried(old, new)
    assert json.loads(new.web_admin_new.read_text())["password"] == "of the old"
    old.web_admin_new.unlink()
    third.web_admin_new.write_text("of the third")
    carried(old, third)
    assert not third.web_admin_new.exists()


def account(machine):
    place = machine.acme / "client" / "config" / "accounts" / "ca.test" / "dir" / "abc"
    place.mkdir(parents=True)
    (place / "private_key.json").write_text('{"kty": "RSA"}')
    return place


def test_an_issued_certificate_and_its_account_are_not_ordered_again(make_machine, pem, tmp_path):
    old, new = make_machine("old", mode="acme"), make_machine("new", mode="acme")
    place = account(old)
    trap = tmp_path / "secret"
    trap.write_text("of somebody else")
    (place / "meta.json").symlink_to(trap)
    os.link(trap, place / "regr.json")
    old.acme_pem.write_text(pem)
    old.acme_state.write_text(json.dumps({"tried": 1, "problem": {"x": 1}, "issued": ISSUED}))
    (account(new).parent / "def").mkdir()
    made, told = carried(old, new)
    assert (made["acme_account"], told["acme_account"], told["left_out"]) == (True, True, [])
    assert new.acme_pem.read_text() == new.tls_pem.read_text() == pem
    kept = json.loads(new.acme_state.read_text())
    assert (kept["issued"], kept["problem"]) == (ISSUED, None)
    back = new.acme / "client" / "config" / "accounts"
    files = [path.relative_to(back) for path in back.rglob("*") if path.is_file()]
    assert [str(path) for path in files] == ["ca.test/dir/abc/private_key.json"]
    assert [path.name for path in new.acme.iterdir()] == ["client"]


@pytest.mark.parametrize("mode", ["files", "self-signed", "acme"])
def test_what_the_plan_does_not_take_is_told_and_left(make_machine, mode, pem):
    old, new = make_machine("old", mode="acme"), make_machine("new", mode=mode, page=False)
    account(old)
    if mode != "acme":
        old.acme_pem.write_text(pem)
        old.acme_state.write_text(json.dumps({"issued": ISSUED}))
    if mode == "self-signed":
        plan = json.loads(new.plan.read_text())
        plan["proxy"]["tls"]["names"] = ["another.example.org"]
        new.plan.write_text(json.dumps(plan))
    before = new.tls_pem.read_text()
    _, told = carried(old, new)
    assert new.tls_pem.read_text() == before
    words = [text.partition(":")[0] for text in told["left_out"]]
    accounts = [] if mode == "acme" else ["the ACME account"]
    assert words == ["the web UI's data", "the certificate", *accounts]


def test_a_page_that_is_not_planned_any_more_is_told(make_machine):
    old = make_machine("old", page=False)
    (old.srv / "web").mkdir()
    assert backup.make_archive(old, os.geteuid())["left_out"] == [
        "the web UI's data in /srv/kimi/web: no web UI is planned here"
    ]


def test_a_host_that_another_serves_for_takes_no_keys(make_machine):
    old, new = make_machine("old"), make_machine("new")
    plan = json.loads(new.plan.read_text())
    plan["group"] = {"rank": 1, "name": "g", "members": [{"host": "head"}, {"host": "new"}]}
    new.plan.write_text(json.dumps(plan))
    before = new.key_map.read_text()
    _, told = carried(old, new)
    assert new.key_map.read_text() == before
    assert told["left_out"] == ["keys and certificate: head serves for this host"]


def as_gateway(machine, first, own="gw2"):
    plan = json.loads(machine.plan.read_text())
    plan |= {"schema": SCHEMA, "gateway": {"first": first, "name": own}}
    machine.plan.write_text(json.dumps(plan))


def test_a_gateway_gets_the_keys_of_clients_and_the_page_of_one_that_is_lost(make_machine):
    old, new = make_machine("old", chats=["kept"]), make_machine("new")
    as_gateway(old, "gw1", "gw1")
    publish.publish(old, {**known(old), "alice": publish.hash_key("of alice")})
    # The other one is the first now.
    as_gateway(new, "gw2")
    _, told = carried(old, new)
    assert told["left_out"] == []
    assert known(new)["alice"] == publish.hash_key("of alice")
    assert chats(new) == ["kept"]


def test_the_second_gateway_takes_no_keys(make_machine):
    old, new = make_machine("old", chats=["kept"]), make_machine("new", page=False)
    as_gateway(old, "gw1", "gw1")
    as_gateway(new, "gw1")
    before = known(new)
    _, told = carried(old, new)
    assert known(new) == before
    assert told["left_out"] == [
        "the web UI's data: gw1 runs the web UI for all machines; restore it there",
        "keys and certificate: gw1 makes them for all gateways",
    ]


def test_the_machines_own_history_stays(make_machine):
    old, new = make_machine("old"), make_machine("new")
    for machine, numbers in ((old, (1, 2)), (new, (1, 7))):
        for number in numbers:
            applied(machine, number)
    _, told = carried(old, new)
    found = {entry["number"]: entry["by"]["user"] for entry in entries.read_all(new)}
    assert found == {1: "new", 2: "old", 7: "new"}
    assert told["left_out"] == ["entries of the history that this machine has as well: 1"]


def applied(machine, number, **more):
    """Note an apply; the user is the machine's name."""
    by = {"user": machine.root.name, "control_host": "c"}
    line = {"schema": entries.SCHEMA, "number": number, "kind": "apply", "result": "done"}
    line |= {"started_at": entries.format_now(), "by": by, "files": [{"path": "/etc/cron.d/x"}]}
    entries.write(machine, {**line, **more})


@pytest.mark.parametrize("step", ["make_archive", "prepare_folder", "restore"])
def test_a_machine_that_is_not_provisioned_says_so(tmp_path, step):
    with pytest.raises(HostError, match="nothing is applied") as caught:
        getattr(backup, step)(Paths(tmp_path), "0" * 64)
    assert "kimi-prov apply" in caught.value.fix


def packed(members, schema=backup.SCHEMA, **about):
    """An archive of somebody else's making, whole by its own word."""
    out = io.BytesIO()
    about = {"made_unix": 1, "hostname": "x", **about}
    with archives.open_archive(out) as archive:
        rows = {name: archives.add_text(archive, name, text) for name, text in members.items()}
        archives.close(archive, schema, about, rows)
    return out.getvalue()


def refused(machine, content, words):
    before = pictured(machine)
    with pytest.raises(HostError, match=words) as caught:
        brought(machine, content, hashlib.sha256(content).hexdigest())
    assert caught.value.fix
    assert pictured(machine) == before
    assert not machine.transfer.exists()
    assert machine.converged == []


OTHERS = tls.make_self_signed(["other"])


ENTRY = {
    "schema": entries.SCHEMA, "number": 1, "kind": "apply", "result": "done", "started_at": "x",
}  # fmt: skip


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"plan.json": "{}"}, "which no backup has"),
        ({"../keys.map": "x"}, "which no backup has"),
        ({"history/x/plan": "x"}, "which no backup has"),
        ({"history/0001/../../../etc/passwd": "x"}, "which no backup has"),
        ({"history/0001/files/etc/cron.d/x": "x"}, "which no backup has"),
        ({"history/0001/entry.json": "{}"}, "no entry of a history"),
        ({"history/0002/entry.json": json.dumps(ENTRY)}, "is entry 1"),
        ({"history/0001/entry.json": json.dumps(ENTRY | {"by": "x"})}, "by has another form"),
        ({"history/0001/entry.json": json.dumps(ENTRY | {"why": 1})}, "why has another form"),
        ({"acme/live/x": "x"}, "which no backup has"),
        ({"keys.map": "no hash\n"}, "without the hash of a key"),
        ({"keys.map": "a" * (2 << 20)}, "larger than on any machine"),
        ({"operator.new": "two words"}, "is no key"),
        ({"tls.pem": "x"}, "its certificate is none"),
        ({"tls.pem": tls.extract_certificates(OTHERS)}, "its certificate is none"),
        (
            {"tls.pem": tls.extract_certificates(OTHERS) + tls.make_self_signed(["third"])},
            "another key",
        ),
        ({"page.tar.gz": "x", "keys.map": "a" * 64 + " operator\n"}, "damaged"),
    ],
)
def test_what_is_no_backup_changes_nothing(make_machine, members, words):
    refused(make_machine("new", chats=["its own"]), packed(members), words)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"schema": "kimi-prov/backup-archive/v9"}, "has the form kimi-prov/backup-archive/v9"),
        ({"made_unix": "x"}, "does not say when and where"),
        ({"hostname": None}, "does not say when and where"),
    ],
)
def test_a_manifest_of_another_form_is_refused(make_machine, about, words):
    refused(make_machine("new"), packed({}, **about), words)


@pytest.mark.parametrize(
    ("kind", "target"), [(tarfile.SYMTYPE, "/etc/shadow"), (tarfile.LNKTYPE, "keys.map")]
)
def test_a_link_is_refused(make_machine, kind, target):
    info = tarfile.TarInfo("keys.map")
    info.type, info.linkname = kind, target
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(info)
    refused(make_machine("new"), gzip.compress(out.getvalue()), "which no backup has")


@pytest.mark.parametrize("part", [0, 0.3, 0.9])
def test_half_a_backup_is_refused(make_machine, part):
    old, new = make_machine("old", chats=["kept"]), make_machine("new", chats=["its own"])
    backup.make_archive(old, os.geteuid())
    whole = (old.transfer / transfer.ARCHIVE).read_bytes()
    shutil.rmtree(old.transfer)
    refused(new, whole[: int(len(whole) * part)], "damaged|incomplete")


def test_a_page_that_does_not_answer_leaves_all_else_as_it_was(make_machine, monkeypatch):
    old, new = make_machine("old", chats=["kept"]), make_machine("new", chats=["its own"])
    made = backup.make_archive(old, os.geteuid())
    content = (old.transfer / transfer.ARCHIVE).read_bytes()

    def fails(web):
        backup.web_backup.run_in_folder(web, "go-back")
        raise HostError("the web UI did not start with what was restored", "read its journal")

    monkeypatch.setattr(backup.web_backup, "switch", fails)
    before = pictured(new)
    with pytest.raises(HostError, match="did not start"):
        brought(new, content, made["sha256"])
    assert pictured(new) == before


@pytest.mark.parametrize("damage", ["", "{", "[]", "\0" * 9])
def test_a_damaged_book_comes_back_from_a_backup_without_a_limit_less(make_machine, damage):
    machine = make_machine("old")
    limit = {"limits": {"requests_per_day": 5}}
    publish.ensure(machine, {"team": "d" * 64})
    publish.add(machine, "alice", limit)
    content, sha256 = archived(machine)
    publish.change(machine, "team", {"ends": 5})
    publish.add(machine, "bob", limit)
    before = machine.key_map.read_text(), machine.key_rules.read_text()
    machine.key_book.write_text(damage)
    with pytest.raises(HostError) as raised:
        publish.ensure(machine, {"team": "d" * 64})
    assert "kimi-prov restore" in raised.value.fix
    brought(machine, content, sha256)
    assert (machine.key_map.read_text(), machine.key_rules.read_text()) == before
    assert publish.ensure(machine, {"team": "d" * 64})["removed"] == []
    assert {*metadata.list_added(metadata.read(machine))} == {"alice", "bob"}


def archived(machine):
    made = backup.make_archive(machine, os.geteuid())
    content = (machine.transfer / transfer.ARCHIVE).read_bytes()
    transfer.remove_archive(machine)
    return content, made["sha256"]


@pytest.mark.parametrize("damage", ["", "\0" * 9, "-----BEGIN CERTIFICATE-----\nMI"])
def test_a_damaged_certificate_comes_back_from_a_backup(make_machine, damage):
    machine = make_machine("old")
    pem = machine.tls_pem.read_text()
    content, sha256 = archived(machine)
    machine.tls_pem.write_text(damage)
    with pytest.raises(HostError) as raised:
        tls.ensure(machine, {"mode": "self-signed", "names": NAMES})
    assert "kimi-prov restore" in raised.value.fix
    brought(machine, content, sha256)
    assert machine.tls_pem.read_text() == pem
