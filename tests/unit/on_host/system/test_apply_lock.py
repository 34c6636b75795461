"""One apply at a time."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from kimi_prov.on_host.system import apply_lock

A = {"run": "a", "user": "root", "control_host": "one", "pid": 1}
B = {"run": "b", "user": "root", "control_host": "two", "pid": 2}


def test_the_second_is_told_who_holds_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert apply_lock.acquire(A, path)["held"]
    answer = apply_lock.acquire(B, path)
    assert not answer["held"]
    assert answer["holder"]["control_host"] == "one"
    assert answer["holder"]["since"]


def test_the_same_run_may_take_it_again(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    apply_lock.acquire(A, path)
    assert apply_lock.acquire(A, path)["held"]


def test_only_the_holder_gives_it_back(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    apply_lock.acquire(A, path)
    apply_lock.release("b", path)
    assert not apply_lock.acquire(B, path)["held"]
    apply_lock.release("a", path)
    assert apply_lock.acquire(B, path)["held"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["lock"]


def test_it_can_be_taken_over_from_the_run_that_was_seen_dead(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    apply_lock.acquire(A, path)
    assert not apply_lock.take(B, "somebody else", path)["held"]
    assert apply_lock.take(B, "a", path)["held"]
    assert json.loads(Path(path).read_text())["run"] == "b"


def test_a_lock_that_nobody_renews_becomes_free(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    apply_lock.acquire(A, path)
    old = Path(path).stat().st_mtime - apply_lock.STALE_S - 1
    os.utime(path, (old, old))
    apply_lock.renew(path)
    assert not apply_lock.acquire(B, path)["held"]
    os.utime(path, (old, old))
    assert apply_lock.acquire(B, path)["held"]


def test_half_a_lock_is_none(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text('{"run": "a"')
    assert apply_lock.acquire(B, str(path))["held"]


def test_of_many_at_once_one_gets_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    held = []

    def try_it(number: int) -> None:
        held.append(apply_lock.acquire({"run": str(number)}, path)["held"])

    threads = [threading.Thread(target=try_it, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held.count(True) == 1
