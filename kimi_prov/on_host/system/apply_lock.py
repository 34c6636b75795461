"""One apply at a time: a lock on the machine that names its holder.

`lock acquire HOLDER-JSON`, `lock take HOLDER-JSON RUN`, `lock release RUN`; each prints JSON. A
lock that was not renewed for two hours is free: its holder has gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from kimi_prov.contract import paths
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import read_json, remove, write_json

# Longer than any task that does not renew it meanwhile: installing an engine.
STALE_S = 7200.0


def acquire(holder: Dict[str, Any], path: str = paths.APPLY_LOCK) -> Dict[str, Any]:
    """Take the lock for `holder` (its `run` names it) unless another holds it.

    Returns `held` and, where it is another's, that `holder` and `age_s`, the seconds since it was
    renewed. The lock of the same run is renewed.
    """
    with _alone(path):
        other, age = _current(path)
        if other is not None and other.get("run") != holder["run"] and age < STALE_S:
            return {"held": False, "holder": other, "age_s": round(age)}
        _write(path, holder)
        return {"held": True, "holder": holder, "age_s": 0}


def take(holder: Dict[str, Any], run: str, path: str = paths.APPLY_LOCK) -> Dict[str, Any]:
    """Take the lock over from `run`, which the caller knows to have ended."""
    with _alone(path):
        other, age = _current(path)
        if other is not None and other.get("run") != run:
            return {"held": False, "holder": other, "age_s": round(age)}
        _write(path, holder)
        return {"held": True, "holder": holder, "age_s": 0}


def release(run: str, path: str = paths.APPLY_LOCK) -> Dict[str, Any]:
    """Release the lock; another run's lock stays."""
    with _alone(path):
        other, _ = _current(path)
        if other is not None and other.get("run") == run:
            remove(path)
    return {"held": False}


def renew(path: str = paths.APPLY_LOCK) -> None:
    """Renew the lock. Called by the subcommands that a running play calls meanwhile."""
    with contextlib.suppress(OSError):
        os.utime(path)


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    """Keep others out while we look and write; the folder is locked, so that no file is left."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _current(path: str) -> Tuple[Optional[Dict[str, Any]], float]:
    """Return the holder and the seconds since it was renewed; an unreadable lock is none."""
    found = read_json(path)
    if not found:
        return None, 0.0
    try:
        return found, max(0.0, time.time() - os.stat(path).st_mtime)
    except OSError:
        return None, 0.0


def _write(path: str, holder: Dict[str, Any]) -> None:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    write_json(path, {**holder, "since": since}, durable=False)


def main(argv: List[str]) -> int:
    """`acquire HOLDER`, `take HOLDER RUN` or `release RUN`."""
    if argv[:1] == ["acquire"] and len(argv) == 2:
        found = acquire(json.loads(argv[1]))
    elif argv[:1] == ["take"] and len(argv) == 3:
        found = take(json.loads(argv[1]), argv[2])
    elif argv[:1] == ["release"] and len(argv) == 2:
        found = release(argv[1])
    else:
        raise HostError("usage: lock acquire HOLDER | take HOLDER RUN | release RUN")
    return answer(found)
