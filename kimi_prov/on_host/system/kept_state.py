"""Reads the files that nobody can make again: a damaged one is not an absent one.

Whoever took it for absent would delete keys, lift limits or forget rules of a firewall. So the
reader raises an error with the way back, and the file stays where it is: each further run fails
too. A copy is kept as `NAME.broken-TIME`, because the way back replaces or removes the file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.contract.state_files import KEPT, KeptState

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.contract.paths import Paths

# A document whose form its own module knows.
State = dict[str, Any]
_BROKEN = ".broken-"
# Copies of one file that are kept.
_MAX_COPIES = 3
_MAX_BYTES = 64 << 20


class DamagedStateError(HostError):
    """A file that nobody can make again is damaged."""


def read(paths: Paths, name: str) -> State:
    """Return a file of `KEPT`; empty where there is none. Raises DamagedStateError."""
    return read_file(paths.locate(name), KEPT[name])


def read_file(path: Path, kept: KeptState) -> State:
    """Return the JSON object of a file; empty where there is none. Raises DamagedStateError."""
    try:
        text = read_regular(path)
        if text is None:
            return {}
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise make_error(path, kept.fix, "it holds no whole JSON") from None
    except OSError as error:
        raise make_error(path, kept.fix, describe_error(error)) from error
    misfit = _find_misfit(value, kept)
    if misfit:
        raise make_error(path, kept.fix, misfit)
    return dict(value)


def read_regular(path: Path) -> str | None:
    """Return the text of a regular file, None where there is none.

    Raises OSError for anything else, a link too, and UnicodeDecodeError; never waits.
    """
    try:
        descriptor = os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link") from None
        raise
    with os.fdopen(descriptor, "rb") as stream:
        about = os.fstat(stream.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        if about.st_size > _MAX_BYTES:
            raise OSError(errno.EFBIG, f"it has {about.st_size} bytes")
        return stream.read().decode("utf-8")


def _find_misfit(value: object, kept: KeptState) -> str:
    if not isinstance(value, dict):
        return "it holds no JSON object"
    if kept.schema is not None and value.get("schema") != kept.schema:
        return f"its schema is not {kept.schema}"
    for name, kind in kept.form.items():
        if not isinstance(value.get(name), kind) or isinstance(value.get(name), bool):
            return f"its {name} is missing or has another form"
    if kept.any_of and not {*kept.any_of} & {*value}:
        return f"it has none of {', '.join(kept.any_of)}"
    return ""


def make_error(path: Path, fix: str, reason: str) -> DamagedStateError:
    """Return the error of a damaged file, which is copied aside."""
    kept = keep_aside(path)
    beside = f" (kept as {kept})" if kept else ""
    return DamagedStateError(
        f"{path} is damaged: {reason}{beside}", fix.format(path=path, folder=path.parent)
    )


def keep_aside(path: Path) -> Path | None:
    """Copy a damaged file beside itself, with the time of its last change; return the copy.

    None where it is no regular file, or nothing can be written: the file itself stays in any case.
    """
    with contextlib.suppress(OSError):
        about = path.lstat()
        changed = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(about.st_mtime))
        copy = path.with_name(f"{path.name}{_BROKEN}{changed}")
        if stat.S_ISREG(about.st_mode):
            if not copy.exists():
                _copy(path, copy)
            return copy
    return None


def _copy(path: Path, copy: Path) -> None:
    fresh = copy.with_name(f".{copy.name}")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    descriptor = os.open(str(fresh), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as into, path.open("rb") as stream:
            shutil.copyfileobj(stream, into)
            into.flush()
            os.fsync(into.fileno())
        fresh.rename(copy)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
    for old in sorted(path.parent.glob(f"{path.name}{_BROKEN}*"))[:-_MAX_COPIES]:
        old.unlink()


def is_kept_aside(name: str) -> bool:
    """Return whether a file is the copy of a damaged one, by its name."""
    return _BROKEN in name


def read_log(path: Path) -> State:
    """Return figures that are only shown; a damaged file is kept aside, and they begin anew."""
    try:
        text = read_regular(path)
        value = {} if text is None else json.loads(text)
    except (OSError, ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    keep_aside(path)
    return {}
