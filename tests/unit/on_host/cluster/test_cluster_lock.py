"""The lock of jobs: one owner at a time, and none that is gone keeps it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kimi_prov.on_host.cluster import lock
from kimi_prov.on_host.system.files import read_json

ROOT = Path(__file__).parents[4]
# Counts up in a file under the lock; whoever is not alone loses counts.
COUNT = """
import sys, time
from pathlib import Path
from kimi_prov.on_host.cluster import lock
path, file = sys.argv[1], Path(sys.argv[2])
for _ in range(5):
    with lock.held(path, lambda name: None, step_s=0.02, lives=lambda job: False):
        number = int(file.read_text())
        time.sleep(0.01)
        file.write_text(str(number + 1))
"""


def silent(_name: str) -> None:
    pass


def test_several_processes_take_turns(tmp_path: Path) -> None:
    path, file = tmp_path / "lock", tmp_path / "count"
    file.write_text("0")
    line = [sys.executable, "-c", COUNT, str(path), str(file)]
    processes = [subprocess.Popen(line, cwd=ROOT) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert file.read_text() == "15"
    assert [p.name for p in tmp_path.iterdir()] == ["count"]


@pytest.mark.parametrize(
    ("owner", "lives"),
    [
        ({"job": "77", "node": "other", "pid": 1}, False),
        ({"job": None, "node": socket.gethostname(), "pid": 4_190_000}, None),
    ],
)
def test_the_lock_of_an_owner_who_is_gone_is_taken(
    tmp_path: Path, owner: dict[str, object], lives: bool | None
) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps(owner))
    with lock.held(str(path), silent, step_s=0.01, lives=lambda job: lives):
        assert read_json(path)["pid"] == os.getpid()
    assert not path.exists()


@pytest.mark.parametrize("lives", [True, None])
def test_the_lock_of_a_job_that_may_live_is_waited_for(tmp_path: Path, lives: bool | None) -> None:
    path, told = tmp_path / "lock", []
    path.write_text(json.dumps({"job": "77", "node": "n1", "pid": 1}))
    before = time.monotonic()

    def asked(job: str) -> bool | None:
        if time.monotonic() - before > 0.3:
            path.unlink(missing_ok=True)
        return lives

    with lock.held(str(path), told.append, step_s=0.05, lives=asked):
        assert told == ["job 77 on n1"]


def test_the_lock_of_another_node_is_stale_when_nobody_touched_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps({"job": None, "node": "other", "pid": 1}))
    os.utime(path, (time.time() - 3600, time.time() - 3600))
    with lock.held(str(path), silent, step_s=0.01):
        assert read_json(path)["node"] == socket.gethostname()


@pytest.mark.parametrize("node", ["other", socket.gethostname()])
def test_a_job_that_was_queued_again_takes_what_it_held_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: str
) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps({"job": "77", "node": node, "pid": 4_190_000}))
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    with lock.held(str(path), silent, step_s=0.01, lives=lambda job: True):
        assert read_json(path)["pid"] == os.getpid()


def test_half_a_lock_is_nobodys_after_a_while(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text('{"job": "4')
    os.utime(path, (time.time() - 3600, time.time() - 3600))
    with lock.held(str(path), silent, step_s=0.01):
        pass
