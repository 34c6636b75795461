"""The private folder of a run: only this user enters it; folders of dead runs are removed."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.runner import cancel
from kimi_prov.runner.arguments import PrivateFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

# A socket's path has at most 107 characters; ssh adds up to 30 of its own to the folder's.
_MAX_LENGTH = 60
_NAME = re.compile(r"kimi-([0-9]+)-\w+")
_RUN = "run"


@contextmanager
def make_private_folder(run_id: str) -> Iterator[PrivateFolder]:
    """Create the folder of the run `run_id`, and remove it at the end.

    The run holds a lock on a file in it: a process id could be another process's in another PID
    namespace that shares the directory. If an earlier run was killed together with its watchdog,
    its folder and processes are removed first.
    """
    usual = Path(tempfile.gettempdir())
    base = usual if len(str(usual)) <= _MAX_LENGTH else Path("/tmp")  # noqa: S108 - mkdtemp is safe
    _remove_leftovers(base)
    folder = Path(tempfile.mkdtemp(prefix=f"kimi-{os.getpid()}-", dir=base))
    try:
        with (folder / _RUN).open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            held.write(run_id)
            held.flush()
            yield PrivateFolder(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers(base: Path) -> None:
    for folder in base.glob("kimi-*-*"):
        named = _NAME.fullmatch(folder.name)
        try:
            about = folder.lstat()
            if not named or not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
                continue
            # An older version held no lock.
            if Path(f"/proc/{named.group(1)}").exists():
                continue
            with (folder / _RUN).open() as left:
                fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                run_id = left.read()
                # An empty file was created a moment ago, and its run is about to lock it.
                if not run_id:
                    continue
                cancel.end_run(run_id, folder)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
