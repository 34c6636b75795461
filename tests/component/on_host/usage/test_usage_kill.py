"""A counter that is killed keeps what it answered."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from kimi_prov.on_host.usage import store
from kimi_prov.on_host.usage.clock import Clock

# The 24th of November 2026, 12:00:00 UTC.
NOON = 1795521600.0


class Time:
    """A machine's two clocks, as a test turns them."""

    def __init__(self) -> None:
        self.wall, self.steady = NOON, 1000.0

    def go(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def clock(self, latest: float = 0.0) -> Clock:
        return Clock(latest, lambda: self.wall, lambda: self.steady)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def db(tmp_path, time):
    made = store.Store(tmp_path / "usage.db", keep_days=400, clock=time.clock())
    yield made
    made.close()


def use(db, name, prompt=0, completion=0, *, ended=True):
    db.tell(name, name.partition("-")[0], prompt, completion, ended=ended)


def sums(db, day=store.EVER):
    return {
        row["key"]: (row["requests"], row["prompt_tokens"], row["completion_tokens"])
        for row in db.rows(day, day)
    }


KILLED = """
import os, signal, sys
from pathlib import Path
from kimi_prov.on_host.usage.store import Store
db = Store(Path(sys.argv[1]), keep_days=400)
for number in range(100):
    db.ask(f"a-{number}", "a", {})
    db.tell(f"a-{number}", "a", 2, 3, ended=number % 2 == 0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_loses_nothing_that_was_answered(tmp_path):
    path = tmp_path / "usage.db"
    done = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert done.returncode == -signal.SIGKILL
    db = store.Store(path, keep_days=400)
    use(db, "a-1", 2, 4)
    assert sums(db) == {"a": (100, 200, 301)}
    db.close()
