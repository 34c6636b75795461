from __future__ import annotations

import grp
import json
import pwd
import re
from types import SimpleNamespace

import pytest

from kimi_prov.contract import gateways, paths, unit_names
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host import destroy

TUNED = {"tuning": {"sysctl": {"vm.swappiness": "1"}, "thp": "always", "governor": "performance"}}


@pytest.fixture
def machine(tmp_path):
    """A root with what an apply leaves, as far as files go. Units and users are lab matters."""
    places = Paths(tmp_path)
    for name, text in {
        "etc/kimi/plan.json": json.dumps(TUNED),
        "proc/sys/vm/max_map_count": "1234567\n",
        "etc/sysctl.d/80-kimi.conf": "vm.swappiness = 1",
        "etc/sysctl.d/99-mine.conf": "x",
        "etc/apt/sources.list": "deb http://mirror",
        "etc/apt/apt.conf.d/52kimi-nvidia": "x",
        "etc/apt/keyrings/kimi-nvidia.gpg": "x",
        "etc/apt/sources.list.d/kimi-nvidia.sources": "x",
        "proc/sys/vm/swappiness": "1\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "srv/kimi/models/m/r/shard": "weights",
        "srv/kimi/lib/kimi-target.pyz": "x",
        "srv/kimi/engines/e/bin/python": "x",
        "run/kimi-group/state.json": "{}",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    places.state.mkdir(parents=True)
    before = {
        "tunables": {
            "sysctl": {"vm.swappiness": "60", "vm.max_map_count": "65530"},
            "thp": "madvise",
            "governor": "powersave",
        },
        "user_existed": True,
        "services": {},
        "files": {"/etc/apt/sources.list": "deb http://debian", "/etc/apt/new": None},
    }
    places.before.write_text(json.dumps(before))
    return places


def steps(machine, *, purge_weights=False):
    work = destroy.Undo(machine, check=False, purge_weights=purge_weights)
    for step in (work.files, work.tunables, work.directories, work.others, work.record):
        step()
    return work


# Names that an administrator might give, which look like ours.
OTHERS = (
    "etc/apt/apt.conf.d/99-not-kimi-proxy",
    "etc/apt/preferences.d/kimi.pref",
    "etc/apt/sources.list.d/kimi-internal.list",
    "etc/security/limits.d/99-not-kimi-proxy.conf",
    "etc/sysctl.d/90-kimi.conf",
    "etc/systemd/system/kimi-backup.service",
    "etc/systemd/system/kimi-proxy.service.d/limits.conf",
    "etc/systemd/system/kimi-serve@.service.d/theirs.conf",
    "etc/systemd/system/kimi-serve@0.service.d/theirs.conf",
    "srv/kimi/backups/notes",
    "usr/local/share/ca-certificates/kimi-corp-root.crt",
)
OUR_UNITS = (
    "etc/systemd/system/kimi-fetch.service",
    "etc/systemd/system/kimi-proxy.service",
    "etc/systemd/system/kimi-rank.service",
    "etc/systemd/system/kimi-rank.service.d/10-plan.conf",
    "etc/systemd/system/kimi-serve@.service",
    "etc/systemd/system/kimi-serve@0.service.d/10-plan.conf",
    "etc/systemd/system/kimi-serve@11.service.d/10-plan.conf",
    "etc/systemd/system/srv-kimi-ram.mount",
)


def put(root, *names, text="x"):
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.mark.parametrize("purge_weights", [False, True])
def test_what_only_looks_like_ours_stays_and_is_told(machine, purge_weights):
    root = machine.root
    put(root, *OTHERS, *OUR_UNITS)
    removed = destroy.Undo(machine, check=False, purge_weights=False).unit_files()
    assert [str(path.relative_to(root)) for path in removed] == list(OUR_UNITS)
    for path in removed:
        path.unlink()
    work = steps(machine, purge_weights=purge_weights)
    assert work.errors == []
    assert [name for name in OTHERS if not (root / name).exists()] == []
    told = {"/" + name.replace("/notes", "") for name in OTHERS}
    assert {*work.kept} - {"/srv/kimi/models"} == told
    assert (root / "srv/kimi/models").exists() != purge_weights
    assert not (root / "etc/apt/apt.conf.d/52kimi-nvidia").exists()


def test_without_a_record_only_what_names_its_writer_goes(tmp_path):
    ours = ("etc/systemd/system/kimi-proxy.service", "etc/sysctl.d/80-kimi.conf")
    theirs = ("etc/systemd/system/kimi-fetch.service", "etc/tmpfiles.d/kimi.conf")
    put(tmp_path, *ours, text="# Written by kimi-prov (role proxy); changes here are overwritten.")
    put(tmp_path, *theirs, text="# Written by hand.")
    work = destroy.Undo(Paths(tmp_path), check=True, purge_weights=False)
    assert [str(path.relative_to(tmp_path)) for path in work.unit_files()] == [ours[0]]
    for step in (work.files, work.directories, work.others):
        step()
    assert work.removed == ["file /etc/sysctl.d/80-kimi.conf"]
    assert {*work.kept} >= {f"/{name}" for name in theirs}


@pytest.mark.parametrize("marked", [True, False])
def test_without_a_record_a_repository_goes_with_its_pin_and_never_alone(tmp_path, marked):
    mark = "# Written by kimi-prov (role nvidia_driver); changes here are overwritten."
    put(tmp_path, paths.NVIDIA_PIN[1:], text=mark if marked else "# Written by hand.")
    put(tmp_path, "etc/apt/sources.list.d/kimi-nvidia.sources", text="Types: deb")
    put(tmp_path, "etc/apt/keyrings/kimi-nvidia.gpg", text="")
    (tmp_path / "etc/apt/keyrings/kimi-nvidia.gpg").write_bytes(b"\x99\x02\x0d\x04")
    work = destroy.Undo(Paths(tmp_path), check=False, purge_weights=False)
    work.files()
    assert work.errors == []
    assert len(work.removed) == (3 if marked else 0)


def test_every_unit_of_ours_is_taken_away():
    """A name that a module of names has and `destroy` does not know would stay for ever."""
    named = {value for value in vars(unit_names).values() if isinstance(value, str)}
    form = re.compile(r"(kimi|srv-kimi)-.*\.(service|mount|timer)")
    ours = {name for name in named if form.fullmatch(name)}
    assert {name for name in ours - {unit_names.ALL_SERVE} if not unit_names.is_ours(name)} == set()
    assert not unit_names.is_ours("kimi-serve@backup.service")


def test_every_managed_file_of_ours_is_taken_away():
    known = {*paths.AMONG_OTHERS, *(f"{paths.UNITS}/{name}" for name in unit_names.OURS)}
    assert {name for name in paths.MANAGED if not name.startswith(paths.ETC + "/")} <= known
    beneath = {name for name in paths.collect_paths().values() if name.startswith(paths.ROOT + "/")}
    tops = {"/".join(name.split("/")[:4]) for name in beneath}
    # A plan names these in sections of its own; one is there while an archive is carried.
    tops |= {paths.OFFLINE, paths.PREPARED, paths.TRANSFER}
    assert tops == {*paths.IN_ROOT, paths.MODELS, paths.WEB}


def test_everything_but_the_weights_is_put_back(machine):
    work = steps(machine)
    root = machine.root
    assert work.errors == []
    assert (root / "proc/sys/vm/swappiness").read_text() == "60"
    assert (root / "sys/kernel/mm/transparent_hugepage/enabled").read_text() == "madvise"
    # Another's change since then, to a setting that was never ours.
    assert (root / "proc/sys/vm/max_map_count").read_text() == "1234567\n"
    governor = root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    assert governor.read_text() == "powersave"
    assert (root / "etc/apt/sources.list").read_text() == "deb http://debian"
    left = sorted(str(p.relative_to(root)) for p in root.rglob("*kimi*"))
    assert left == ["srv/kimi"]
    assert [p.name for p in (root / "srv/kimi").iterdir()] == ["models"]
    assert (root / "srv/kimi/models/m/r/shard").read_text() == "weights"
    assert (root / "etc/sysctl.d/99-mine.conf").exists()


def test_a_second_run_finds_nothing_to_do(machine):
    steps(machine)
    again = steps(machine)
    assert (again.removed, again.restored, again.errors) == ([], [], [])


def test_check_mode_lists_and_changes_nothing(machine):
    before = {p: p.read_text() for p in machine.root.rglob("*") if p.is_file()}
    work = destroy.Undo(machine, check=True, purge_weights=True)
    for step in (work.files, work.tunables, work.directories, work.record):
        step()
    assert "sysctl vm.swappiness = 60" in work.restored
    assert "/etc/kimi" in work.removed
    assert {p: p.read_text() for p in machine.root.rglob("*") if p.is_file()} == before


def test_a_step_that_fails_is_told_and_the_record_stays_for_another_run(machine):
    work = destroy.Undo(machine, check=False, purge_weights=False)

    def refuse():
        raise OSError("busy")

    work.act(work.removed, "mount /srv/kimi/ram", refuse)
    work.record()
    assert work.errors == ["mount /srv/kimi/ram: busy"]
    assert machine.before.exists()


@pytest.mark.parametrize("purge_weights", [False, True])
def test_a_bind_mount_of_the_same_file_system_is_emptied_and_stays(machine, purge_weights):
    """As `disk.mount` advises in place of a link: no device number tells it from a directory."""
    root = machine.root
    line = "3 1 8:1 /data/{0} /srv/kimi/{0} rw - ext4 /dev/sda1 rw\n"
    put(root, "proc/self/mountinfo", text=line.format("models") + line.format("engines"))
    work = steps(machine, purge_weights=purge_weights)
    assert work.errors == []
    assert list((root / "srv/kimi/engines").iterdir()) == []
    assert (root / "srv/kimi/models/m").exists() != purge_weights
    assert (root / "srv/kimi/models").is_dir()
    assert "/srv/kimi/engines, a file system of its own" in work.kept


SITE_USER = {"user_existed": True, "proxy_user_existed": False}


@pytest.mark.parametrize(
    ("before", "users", "groups", "removed"),
    [
        # The role gave the site's account a group of its name.
        ({**SITE_USER, "groups_existed": []}, ["kimi"], ["kimi"], ["group kimi"]),
        ({**SITE_USER, "groups_existed": ["kimi"]}, ["kimi"], ["kimi"], []),
        (
            {"user_existed": False, "groups_existed": ["kimi"]},
            ["kimi", "kimi-proxy"],
            ["kimi", "kimi-proxy"],
            ["user kimi-proxy", "user kimi"],
        ),
        # The one that orders certificates is made later than the others.
        (
            {**SITE_USER, "groups_existed": ["kimi"]},
            ["kimi", "kimi-acme"],
            ["kimi", "kimi-acme"],
            ["user kimi-acme"],
        ),
        # An apply that ended between groups and users.
        ({**SITE_USER, "groups_existed": []}, [], ["kimi-proxy"], ["group kimi-proxy"]),
        # A record of an earlier version.
        ({"user_existed": True}, ["kimi"], ["kimi"], []),
        # It names no user that is made since: the page's is ours by its home, that of the site not.
        (SITE_USER, ["kimi-acme", "kimi-web"], [], ["user kimi-acme", "user kimi-web"]),
        (SITE_USER, ["kimi-acme of the site", "kimi-web of the site"], [], []),
        ({**SITE_USER, "web_user_existed": True}, ["kimi-web"], [], []),
        (None, ["kimi"], ["kimi"], []),
    ],
)
def test_a_user_and_a_group_go_each_where_an_apply_made_it(
    monkeypatch, tmp_path, before, users, groups, removed
):
    homes = {"kimi-web": "/srv/kimi/web", "kimi-acme": "/nonexistent"}
    there = {
        name.partition(" ")[0]: SimpleNamespace(pw_dir=homes.get(name, "/home/site"))
        for name in users
    }
    users = list(there)
    monkeypatch.setattr(pwd, "getpwnam", there.__getitem__)
    monkeypatch.setattr(grp, "getgrnam", dict.fromkeys(groups, True).__getitem__)
    places = Paths(tmp_path)
    if before is not None:
        put(tmp_path, str(places.before.relative_to(tmp_path)), text=json.dumps(before))
    work = destroy.Undo(places, check=True, purge_weights=False)
    work.users()
    assert work.removed == [*removed]
    assert work.kept == [f"user {name}" for name in users if f"user {name}" not in removed]


@pytest.mark.parametrize("purge_web", [False, True])
def test_what_the_page_s_accounts_keep_stays_unless_it_shall_go(machine, purge_web):
    root = machine.root
    put(root, "srv/kimi/web/webui.db", "srv/kimi/web-env/1.0-a/bin/open-webui")
    work = destroy.Undo(machine, check=False, purge_weights=True, purge_web=purge_web)
    work.directories()
    assert work.errors == []
    assert (root / "srv/kimi/web/webui.db").exists() != purge_web
    assert ("/srv/kimi/web" in work.kept) != purge_web
    assert not (root / "srv/kimi/web-env").exists()
    assert (root / "srv/kimi").exists() != purge_web


def test_a_gateway_loses_the_interpreter_that_was_brought_for_its_page(machine):
    root = machine.root
    machine.plan.write_text(json.dumps({"schema": gateways.SCHEMA}))
    put(root, "srv/kimi/tools/python/cpython-3.12/bin/python3", "srv/kimi/web/webui.db")
    work = destroy.Undo(machine, check=False, purge_weights=True)
    work.directories()
    assert "/srv/kimi/tools" in work.removed
    assert sorted(path.name for path in (root / "srv/kimi").iterdir()) == ["web"]


@pytest.mark.parametrize("purge_web", [False, True])
def test_an_unseen_password_stays_with_the_account_that_it_opens(machine, purge_web):
    root = machine.root
    put(root, "srv/kimi/web/webui.db", "etc/kimi/keys/web-admin.new", "etc/kimi/keys/verify.key")

    def destroyed():
        work = destroy.Undo(machine, check=False, purge_weights=True, purge_web=purge_web)
        work.directories()
        assert work.errors == []
        return work

    told = [text for text in destroyed().kept if "was not shown yet" in text]
    left = [str(path.relative_to(root)) for path in root.glob("etc/kimi/**/*") if path.is_file()]
    assert left == ([] if purge_web else ["etc/kimi/keys/web-admin.new"])
    assert bool(told) != purge_web
    assert destroyed().removed == []
