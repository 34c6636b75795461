"""Copes with standard output and standard error that are closed, full, or not in UTF-8."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys

# An error of a file names it; an error of a stream names none.
_OF_A_STREAM = (errno.ENOSPC, errno.EBADF, errno.EIO, errno.EDQUOT, errno.EFBIG)
_ESCAPED = "kimi-prov-escaped"


def prepare() -> None:
    """Prepare the standard streams, so that a write to them succeeds or fails as a write.

    A closed stream is opened, because the next file would get its number and our report. Characters
    that the encoding of standard output lacks are written as JSON escapes.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        # A closed standard output is opened for reading: a write to it fails and is reported.
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    codecs.register_error(_ESCAPED, _escape)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_ESCAPED)


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n : n + 2].hex()}" for n in range(0, len(units), 2)), error.end


def explain_unwritable(error: OSError) -> str | None:
    """Return why standard output cannot be written; None for an error of another file.

    The rest of its buffer is dropped, because Python would write it at exit and fail again.
    """
    if error.filename is not None or error.errno not in _OF_A_STREAM:
        return None
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    return os.strerror(error.errno)
