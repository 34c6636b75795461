"""The lock of jobs: one owner at a time, and none that is gone keeps it."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING

import pytest

from kimi_prov.on_host.cluster import lock
from kimi_prov.on_host.system.files import read_json

if TYPE_CHECKING:
    from pathlib import Path


def silent(_name: str) -> None:
    pass


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
    with lock.lock(str(path), silent, step_s=0.01, lives=lambda job: lives):
        assert read_json(path)["pid"] == os.getpid()
    assert not path.exists()


def test_the_lock_of_another_node_is_stale_when_nobody_touched_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps({"job": None, "node": "other", "pid": 1}))
    os.utime(path, (time.time() - 3600, time.time() - 3600))
    with lock.lock(str(path), silent, step_s=0.01):
        assert read_json(path)["node"] == socket.gethostname()


@pytest.mark.parametrize("node", ["other", socket.gethostname()])
def test_a_job_that_was_queued_again_takes_what_it_held_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: str
) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps({"job": "77", "node": node, "pid": 4_190_000}))
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    with lock.lock(str(path), silent, step_s=0.01, lives=lambda job: True):
        assert read_json(path)["pid"] == os.getpid()


def test_half_a_lock_is_nobodys_after_a_while(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text('{"job": "4')
    os.utime(path, (time.time() - 3600, time.time() - 3600))
    with lock.lock(str(path), silent, step_s=0.01):
        pass
