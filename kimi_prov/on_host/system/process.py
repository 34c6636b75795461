"""Runs a program without a shell; a missing or too slow program has an exit status too."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.errors import HostError

if TYPE_CHECKING:
    import pwd
    from collections.abc import Iterator, Mapping, Sequence

NOT_FOUND = 127
NOT_RUNNABLE = 126
TIMED_OUT = 124
# When the innermost `limit_time` ends, by the monotonic clock.
_ends: list[float] = []


@contextlib.contextmanager
def limit_time(seconds: float, what: str) -> Iterator[None]:
    """Limit all programs that run inside to `seconds` together, whatever their own limits.

    Raises HostError where one did not answer in that time, whatever its caller did about it.
    """
    end = time.monotonic() + seconds
    _ends.append(min([end, *_ends[-1:]]))
    try:
        yield
    except HostError:
        # The timeout is the cause of any error after it, and is reported instead.
        if time.monotonic() < end:
            raise
    finally:
        _ends.pop()
    if time.monotonic() >= end:
        raise HostError(f"{what} did not answer in {seconds:g} s")


class Unfinished(subprocess.CompletedProcess[str]):
    """The result of a program that did not run to its end; standard error has the reason."""

    def __init__(self, argv: Sequence[str], returncode: int, reason: str) -> None:
        super().__init__(list(argv), returncode, "", f"{argv[0]}: {reason}")


def run(
    *argv: str,
    stdin: str | None = None,
    timeout: float | None = 60,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    user: pwd.struct_passwd | None = None,
    capture_stderr: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command and return its output; the caller checks the exit status.

    A program that is missing, cannot be run or takes more than `timeout` seconds gives 127, 126 or
    124 (`Unfinished`). `env` replaces the environment, which otherwise is ours with LC_ALL=C.
    `user` drops root's rights and groups. Inside `limit_time` it has at most the time that is left.
    """
    if _ends:
        left = max(0.0, _ends[-1] - time.monotonic())
        timeout = left if timeout is None else min(timeout, left)
    identity: dict[str, Any] = {}
    if user is not None:
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    try:
        return subprocess.run(
            list(argv),
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if capture_stderr else None,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C"} if env is None else dict(env),
            check=False,
            **identity,
        )
    except FileNotFoundError:
        return Unfinished(argv, NOT_FOUND, "not found")
    except OSError as error:
        return Unfinished(argv, NOT_RUNNABLE, str(error.strerror))
    except subprocess.TimeoutExpired:
        return Unfinished(argv, TIMED_OUT, "timed out")
