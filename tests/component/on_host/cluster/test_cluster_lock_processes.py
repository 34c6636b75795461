"""Several processes take the lock of jobs in turn, and wait for one that may live."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kimi_prov.on_host.cluster import lock

ROOT = Path(__file__).parents[4]
# Counts up in a file under the lock; whoever is not alone loses counts.
COUNT = """
import sys, time
from pathlib import Path
from kimi_prov.on_host.cluster import lock
path, file = sys.argv[1], Path(sys.argv[2])
for _ in range(5):
    with lock.lock(path, lambda name: None, step_s=0.02, lives=lambda job: False):
        number = int(file.read_text())
        time.sleep(0.01)
        file.write_text(str(number + 1))
"""


def test_several_processes_take_turns(tmp_path: Path) -> None:
    path, file = tmp_path / "lock", tmp_path / "count"
    file.write_text("0")
    line = [sys.executable, "-c", COUNT, str(path), str(file)]
    processes = [subprocess.Popen(line, cwd=ROOT) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert file.read_text() == "15"
    assert [p.name for p in tmp_path.iterdir()] == ["count"]


@pytest.mark.parametrize("lives", [True, None])
def test_the_lock_of_a_job_that_may_live_is_waited_for(tmp_path: Path, lives: bool | None) -> None:
    path, told = tmp_path / "lock", []
    path.write_text(json.dumps({"job": "77", "node": "n1", "pid": 1}))
    before = time.monotonic()

    def asked(job: str) -> bool | None:
        if time.monotonic() - before > 0.3:
            path.unlink(missing_ok=True)
        return lives

    with lock.lock(str(path), told.append, step_s=0.05, lives=asked):
        assert told == ["job 77 on n1"]
