"""How the log of a job names a full file system, or a used-up quota."""

from __future__ import annotations

import errno
import os
import tempfile

from kimi_prov.contract.errors import HostError, describe_error

FIX = "free space there, or have the quota raised, then submit the job again"
_FULL = (errno.ENOSPC, errno.EDQUOT)
# What is missing after an installation that failed because of a full disk.
_PROBE_BYTES = 64 << 20


def from_system_error(error: OSError, folder: str) -> HostError:
    """Return the error of a system call with the folder, where the error names no file."""
    told = f"{error.filename or folder}: {describe_error(error)}"
    return HostError(told, FIX if error.errno in _FULL else None)


def explain_full(folder: str) -> str | None:
    """Return why a folder takes no more files; None where it does, or where that is unknown."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            os.posix_fallocate(probe.fileno(), 0, _PROBE_BYTES)
    except OSError as error:
        return f"{folder}: {describe_error(error)}" if error.errno in _FULL else None
    return None
