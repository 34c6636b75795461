"""One apply at a time."""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kimi_prov.on_host.system import apply_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    assert not apply_lock.take_over(B, "somebody else", path)["held"]
    assert apply_lock.take_over(B, "a", path)["held"]
    assert json.loads(Path(path).read_text())["run"] == "b"


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The machine's clock and the seconds since its boot, as a test turns them."""
    now = {"wall": time.time(), "boot": 5000.0}
    monkeypatch.setattr(apply_lock.time, "time", lambda: now["wall"])
    monkeypatch.setattr(apply_lock.time, "clock_gettime", lambda _: now["boot"])
    return now


def test_a_lock_that_nobody_renews_becomes_free(tmp_path: Path, clocks: dict[str, float]) -> None:
    path = str(tmp_path / "lock")
    apply_lock.acquire(A, path)
    clocks["boot"] += apply_lock.STALE_S - 1
    apply_lock.renew(path)
    clocks["boot"] += apply_lock.STALE_S - 1
    answer = apply_lock.acquire(B, path)
    assert (answer["held"], answer["age_s"]) == (False, round(apply_lock.STALE_S - 1))
    clocks["boot"] += 2
    assert apply_lock.find_holder(path) is None
    assert apply_lock.acquire(B, path)["held"]


@pytest.mark.parametrize("jump_s", [2 * 3600 + 1, 86_400, -3600, -86_400])
def test_a_clock_that_jumps_neither_frees_a_lock_nor_keeps_one(
    tmp_path: Path, clocks: dict[str, float], jump_s: float
) -> None:
    path = str(tmp_path / "lock")
    apply_lock.acquire(A, path)
    clocks["wall"] += jump_s
    assert not apply_lock.acquire(B, path)["held"]
    clocks["wall"] += apply_lock.STALE_S + 1
    clocks["boot"] += apply_lock.STALE_S + 1
    assert apply_lock.acquire(B, path)["held"]


def test_a_lock_that_an_older_version_renews_becomes_free_by_its_files_time(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps(A))
    old = path.stat().st_mtime - apply_lock.STALE_S - 1
    assert not apply_lock.acquire(B, str(path))["held"]
    os.utime(path, (old, old))
    assert apply_lock.acquire(B, str(path))["held"]


def test_half_a_lock_is_none(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text('{"run": "a"')
    assert apply_lock.acquire(B, str(path))["held"]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file or a folder as a process that may only read it can, and keep it locked."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def test_nobody_else_may_open_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    apply_lock.acquire(A, str(path))
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_guard_that_others_may_open_is_not_waited_for(tmp_path: Path) -> None:
    guard = tmp_path / "lock.guard"
    guard.touch()
    guard.chmod(0o644)
    with locked(guard):
        assert apply_lock.acquire(A, str(tmp_path / "lock"))["held"]


@pytest.mark.parametrize("name", ["lock", "lock.guard"])
def test_a_link_in_its_place_leads_nowhere(tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(json.dumps(B))
    (tmp_path / name).symlink_to(elsewhere)
    assert apply_lock.acquire(A, str(tmp_path / "lock"))["held"]
    assert json.loads(elsewhere.read_text()) == B
    assert not (tmp_path / "lock").is_symlink()


def test_a_lock_that_another_user_may_change_is_none(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps(B))
    path.chmod(0o666)
    assert apply_lock.acquire(A, str(path))["held"]


def test_the_lock_of_an_older_version_is_respected(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps({**A, "since": "2026-11-20T00:00:00Z"}))
    path.chmod(0o644)
    answer = apply_lock.acquire(B, str(path))
    assert (answer["held"], answer["holder"]["run"]) == (False, "a")
