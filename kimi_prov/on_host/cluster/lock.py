"""A lock on a shared file system that jobs of several nodes respect.

A file that only one process can create (O_EXCL works on NFS, Lustre and GPFS), with its owner in
it: the job, the node and the process. It is stale when SLURM no longer knows the job; without a job
when the process is gone, or, seen from another node, when its owner touched it a while ago.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import processes
from kimi_prov.on_host.cluster import slurm
from kimi_prov.on_host.system.files import read_json, remove

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOUCH_S = 30.0
# An owner without a job that touched its lock longer ago is gone.
_STALE_S = 900.0
# Seconds: a process that breaks a stale lock does it at once.
_BREAKING_S = 60.0


def describe_owner() -> dict[str, Any]:
    """Describe this process."""
    job = os.environ.get("SLURM_JOB_ID")
    return {"job": job, "node": socket.gethostname(), "pid": os.getpid()}


@contextlib.contextmanager
def lock(
    path: str,
    waiting: Callable[[str], None],
    step_s: float = 10.0,
    lives: Callable[[str], bool | None] = slurm.is_living,
) -> Iterator[None]:
    """Hold the lock file `path`; wait for its owner, whose name `waiting` gets once."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    reported = ""
    while not _acquire(path):
        found = read_json(path)
        if _is_stale(path, found, lives):
            _break(path, found)
            continue
        name = _format_owner(found)
        if name != reported:
            waiting(name)
            reported = name
        time.sleep(step_s)
    stop = threading.Event()
    beat = threading.Thread(target=_touch, args=(path, stop), daemon=True)
    beat.start()
    try:
        yield
    finally:
        stop.set()
        beat.join()
        if read_json(path) == describe_owner():
            remove(path)


def _acquire(path: str) -> bool:
    """Make the lock file atomically: it is linked to its name when the owner is in it."""
    mine = f"{path}.{socket.gethostname()}.{os.getpid()}"
    try:
        with open(mine, "w", encoding="utf-8") as stream:
            json.dump(describe_owner(), stream)
        try:
            os.link(mine, path)
        except FileExistsError:
            return False
        except PermissionError:
            # The file system may have no hard links.
            return _make(path)
        return True
    finally:
        remove(mine)


def _make(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(describe_owner(), stream)
    except OSError:
        # Without its owner it would block everybody until it is old.
        remove(path)
        raise
    return True


def _is_stale(path: str, found: dict[str, Any], lives: Callable[[str], bool | None]) -> bool:
    job = found.get("job")
    # A job that was queued again keeps its number: a lock from its earlier run has no owner.
    if isinstance(job, str) and job.isdigit() and job != describe_owner()["job"]:
        return lives(job) is False
    if found == describe_owner():
        # In a container each process is number 1: an earlier process had the same number.
        return True
    if found.get("node") == socket.gethostname() and isinstance(found.get("pid"), int):
        return not processes.is_alive(found["pid"])
    return bool(job and job == describe_owner()["job"]) or _measure_age(path) > _STALE_S


def _measure_age(path: str) -> float:
    """Return the seconds since the lock was touched, by the file system's own clock."""
    probe = f"{path}.now.{socket.gethostname()}.{os.getpid()}"
    try:
        with open(probe, "w", encoding="utf-8"):
            pass
        return os.stat(probe).st_mtime - os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0
    finally:
        remove(probe)


def _break(path: str, found: dict[str, Any]) -> None:
    """Remove a stale lock; only one of several processes does, and none removes a new owner's."""
    breaking = f"{path}.breaking"
    if not _make(breaking):
        if _measure_age(breaking) > _BREAKING_S:
            remove(breaking)
        time.sleep(0.2)
        return
    try:
        if read_json(path) == found:
            remove(path)
    finally:
        remove(breaking)


def _touch(path: str, stop: threading.Event) -> None:
    while not stop.wait(_TOUCH_S):
        with contextlib.suppress(OSError):
            os.utime(path)


def _format_owner(found: dict[str, Any]) -> str:
    if not found:
        return "another job"
    job = f"job {found['job']}" if found.get("job") else f"process {found.get('pid')}"
    return f"{job} on {found.get('node')}"


def make_wait_printer(what: str) -> Callable[[str], None]:
    """Return a function that prints whose end is waited for."""

    def print_wait(name: str) -> None:
        print(f"{what}: {name} holds the lock; waiting for its end", flush=True)

    return print_wait
