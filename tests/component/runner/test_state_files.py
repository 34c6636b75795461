"""What is written on the control machine: for this user alone from its first moment, whatever
the umask, and removed where it holds a secret."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from file_list import row_of, rows

from kimi_prov.commands.common import bench_results
from kimi_prov.runner import locks
from kimi_prov.show import exit_handling

SECRET = "hunter2-of-the-site"
LOOK = """
- ansible.builtin.command:
    argv: [find, "{{ lookup('env', 'KIMI_PROV_PROGRESS') | dirname }}", -printf, '%y %m %P\\n']
  register: found
- ansible.builtin.copy:
    content: "{{ found.stdout }}"
    dest: LISTING
"""


@pytest.fixture
def no_umask():
    former = os.umask(0)
    yield
    os.umask(former)


def failing():
    raise RuntimeError("a fault of ours")


def test_every_file_of_a_run_is_this_users_alone(
    play, state, hosts_file, tmp_path, no_umask, monkeypatch
):
    own = Path(tempfile.mkdtemp(dir="/tmp", prefix="t-"))
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    listing = tmp_path / "listing"
    with locks.hold_lock(hosts_file, "apply", state):
        play(LOOK.replace("LISTING", str(listing)), variables={"kimi_secret": SECRET})
    bench_results.save(bench_results.find_folder(state, hosts_file, "one"), {"n": 1})
    exit_handling.run_guarded(failing)

    seen = [line.split(" ", 2) for line in listing.read_text().splitlines()]
    during = {name: mode for kind, mode, name in seen if kind in "fd"}
    assert {"", "vars.json", "run"} <= set(during)
    assert (during[""], during["vars.json"]) == ("700", "600")
    own.rmdir()

    kept = {
        "/".join(("STATE", *path.relative_to(state).parts)): path
        for path in (state, *state.rglob("*"))
    }
    listed = rows(managed=False)
    files = {name for name, path in kept.items() if path.is_file()} | {"STATE"}
    assert [name for name in files if row_of(name, listed) is None] == []
    # What `connect` and `chat` keep is held where they are tried, in tests/unit/commands.
    others = [row for row in listed if not row.path.startswith(("STATE/connect/", "STATE/chat"))]
    assert [row.path for row in others if not any(row.names(name) for name in files)] == []
    wide = [name for name, path in kept.items() if path.stat().st_mode & 0o077]
    assert wide == []
    holding = [n for n, p in kept.items() if p.is_file() and SECRET in p.read_text()]
    assert holding == []
