from __future__ import annotations

import json

import pytest

from kimi_prov.on_host import destroy
from kimi_prov.on_host.system.process import Paths

TUNED = {"tuning": {"sysctl": {"vm.swappiness": "1"}, "thp": "always", "governor": "performance"}}


@pytest.fixture
def machine(tmp_path):
    """A root with what an apply leaves, as far as files go. Units and users are lab matters."""
    paths = Paths(tmp_path)
    for name, text in {
        "etc/kimi/plan.json": json.dumps(TUNED),
        "proc/sys/vm/max_map_count": "1234567\n",
        "etc/sysctl.d/80-kimi.conf": "vm.swappiness = 1",
        "etc/sysctl.d/99-mine.conf": "x",
        "etc/apt/sources.list": "deb http://mirror",
        "etc/apt/apt.conf.d/80kimi-mirror": "x",
        "proc/sys/vm/swappiness": "1\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "srv/kimi/models/m/r/shard": "weights",
        "srv/kimi/lib/kimi-target.pyz": "x",
        "srv/kimi/engines/e/bin/python": "x",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    paths.state.mkdir(parents=True)
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
    paths.before.write_text(json.dumps(before))
    return paths


def steps(paths, **options):
    work = destroy.Undo(paths, check=False, purge_weights=False, **options)
    for step in (work.files, work.tunables, work.directories, work.record):
        step()
    return work


def test_everything_but_the_weights_is_put_back(machine):
    work = steps(machine)
    root = machine.root
    assert work.troubles == []
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
    assert (again.removed, again.restored, again.troubles) == ([], [], [])


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
    assert work.troubles == ["mount /srv/kimi/ram: busy"]
    assert machine.before.exists()
