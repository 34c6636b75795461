"""Other processes that have the lock of an apply, and how long they are waited for."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from waiting import HANGS_S

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system import apply_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

A = {"run": "a", "user": "root", "control_host": "one", "pid": 1}
B = {"run": "b", "user": "root", "control_host": "two", "pid": 2}


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file or a folder as a process that may only read it can, and keep it locked."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def test_who_keeps_the_folder_locked_stops_nobody(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    program = f"from {apply_lock.__name__} import *; print(acquire({A}, {path!r})['held'])"
    with locked(tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=HANGS_S,
            check=False,
        )
    assert (done.stdout.strip(), done.stderr) == ("True", "")


def test_a_hanging_process_is_named_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_lock, "WAIT_S", 0.2)
    guard = tmp_path / "lock.guard"
    guard.touch(mode=0o600)
    with locked(guard), pytest.raises(HostError, match=r"lock: (another )?process"):
        apply_lock.acquire(A, str(tmp_path / "lock"))
    assert apply_lock.acquire(A, str(tmp_path / "lock"))["held"]


def test_an_older_version_that_looks_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It locks the folder for that."""
    monkeypatch.setattr(apply_lock, "_OLDER_WAIT_S", HANGS_S)
    path = tmp_path / "lock"
    answers = []
    with locked(tmp_path):
        other = threading.Thread(target=lambda: answers.append(apply_lock.acquire(B, str(path))))
        other.start()
        path.write_text(json.dumps(A))
        path.chmod(0o644)
    other.join()
    assert not answers[0]["held"]
