"""Copes with standard output and standard error that are closed, full, or not in UTF-8."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys

# Files are written where their names are told in errors; a stream has none.
_OF_A_STREAM = (errno.ENOSPC, errno.EBADF, errno.EIO, errno.EDQUOT, errno.EFBIG)
_ESCAPED = "kimi-prov-escaped"


def prepare() -> None:
    """Make the standard streams such that what is written to them arrives, or fails as writing.

    A closed one is held open, for the next file would get its number and our report with it. What
    the encoding of standard output lacks is written as JSON escapes it.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        # Standard output is held open for reading: writing to it fails, and is told.
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
    """Return why standard output takes nothing, None for an error of something else.

    What is left in it is lost: Python writes that when it ends, and would complain once more.
    """
    if error.filename is not None or error.errno not in _OF_A_STREAM:
        return None
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    return os.strerror(error.errno)
