"""One apply at a time: a lock on the machine that names its holder.

`lock acquire HOLDER-JSON`, `lock take HOLDER-JSON RUN`, `lock release RUN`; each prints JSON. A
lock that was not renewed for two hours is free: its holder has gone. The time is that since the
boot, which no setting of the clock changes; the file is gone after a boot.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from typing import TYPE_CHECKING, Any, cast

from kimi_prov.contract import paths
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system import file_lock
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import remove, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.contract.documents.lock import LockAnswer, LockHolder

# Longer than any task that does not renew it meanwhile: installing an engine.
STALE_S = 7200.0
# Seconds to wait for another process, which reads and writes within milliseconds.
WAIT_S = 10.0
# Earlier versions lock the folder for that. Any local user may lock it, and keep it locked.
_OLDER_WAIT_S = 0.5


def acquire(holder: LockHolder, path: str = paths.APPLY_LOCK) -> LockAnswer:
    """Take the lock for `holder` (its `run` names it) unless another holds it.

    Returns `held` and, where another holds it, that `holder` and `age_s`, the seconds since it was
    renewed. A lock of the same run is renewed, which `renewed` says.
    """
    with _exclude_others(path):
        other, age = _read_current(path)
        if other is not None and other.get("run") != holder["run"] and age < STALE_S:
            return {"held": False, "holder": other, "age_s": round(age)}
        renewed = other is not None and other.get("run") == holder["run"]
        _write(path, holder)
        return {"held": True, "holder": holder, "age_s": 0, "renewed": renewed}


def take_over(holder: LockHolder, run: str, path: str = paths.APPLY_LOCK) -> LockAnswer:
    """Take the lock over from `run`, which the caller knows to have ended."""
    with _exclude_others(path):
        other, age = _read_current(path)
        if other is not None and other.get("run") != run:
            return {"held": False, "holder": other, "age_s": round(age)}
        _write(path, holder)
        return {"held": True, "holder": holder, "age_s": 0}


def release(run: str, path: str = paths.APPLY_LOCK) -> LockAnswer:
    """Release the lock; another run's lock stays."""
    with _exclude_others(path):
        other, _ = _read_current(path)
        if other is not None and other.get("run") == run:
            remove(path)
    return {"held": False}


def find_holder(path: str = paths.APPLY_LOCK, fresh_s: float = STALE_S) -> LockHolder | None:
    """Return who holds the lock now; None where it is free. Takes nothing and does not wait.

    `fresh_s`: a holder that has not renewed it for so long does not count.
    """
    found, age = _read_current(path)
    return found if age < fresh_s else None


def renew(path: str = paths.APPLY_LOCK) -> None:
    """Renew the lock; for the subcommands that a running play calls meanwhile."""
    with contextlib.suppress(OSError, HostError), _exclude_others(path):
        holder, _ = _read_current(path)
        if holder is not None:
            _write_renewed(path, holder)


@contextlib.contextmanager
def _exclude_others(path: str) -> Iterator[None]:
    """Exclude other processes while this one reads and writes."""
    try:
        with (
            file_lock.lock(f"{path}.guard", WAIT_S),
            _lock_out_older_versions(os.path.dirname(path)),
        ):
            yield
    except file_lock.TakenError as error:
        raise HostError(
            f"{path}: {error} has been reading or writing this lock for {WAIT_S:.0f} s",
            "end that process, which hangs, and run this again",
            retryable=True,
        ) from None


@contextlib.contextmanager
def _lock_out_older_versions(folder: str) -> Iterator[None]:
    """Lock the folder as well, unless another process keeps it locked."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + _OLDER_WAIT_S
        while not file_lock.try_lock(descriptor) and time.monotonic() < deadline:
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def _read_current(path: str) -> tuple[LockHolder | None, float]:
    """Return the holder and the seconds since it was renewed; an unreadable lock counts as none.

    A link counts as none too, and a file that another user made or may change.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None, 0.0
    with os.fdopen(descriptor, "rb") as stream:
        about = os.fstat(descriptor)
        ours = about.st_uid == os.geteuid() and not about.st_mode & 0o022
        if not (ours and stat.S_ISREG(about.st_mode)):
            return None, 0.0
        try:
            found: Any = json.loads(stream.read())
        except ValueError:
            return None, 0.0
    if not isinstance(found, dict) or not found:
        return None, 0.0
    holder: LockHolder = cast("LockHolder", found)
    age = _read_age(holder)
    return holder, max(0.0, time.time() - about.st_mtime) if age is None else age


def _read_age(holder: LockHolder) -> float | None:
    """Return the seconds since the lock was renewed; None where its holder does not say when."""
    at = holder.get("boot_s")
    if not isinstance(at, (int, float)):
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - at
    return age if age >= 0 else None


def _write(path: str, holder: LockHolder) -> None:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    _write_renewed(path, {**holder, "since": since})


def _write_renewed(path: str, holder: LockHolder) -> None:
    boot_s = round(time.clock_gettime(time.CLOCK_BOOTTIME), 3)
    write_json(path, {**holder, "boot_s": boot_s}, durable=False, mode=0o600)


def main(argv: list[str]) -> int:
    """`acquire HOLDER`, `take HOLDER RUN` or `release RUN`."""
    if argv[:1] == ["acquire"] and len(argv) == 2:
        found = acquire(json.loads(argv[1]))
    elif argv[:1] == ["take"] and len(argv) == 3:
        found = take_over(json.loads(argv[1]), argv[2])
    elif argv[:1] == ["release"] and len(argv) == 2:
        found = release(argv[1])
    else:
        raise HostError("usage: lock acquire HOLDER | take HOLDER RUN | release RUN")
    return answer(found)
