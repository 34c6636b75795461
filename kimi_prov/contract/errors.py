"""The two ways a job on the managed machine fails: for good, or for now.

The sentence in either is what the person at the terminal reads, so it names the file, host or
key and says what mends it.
"""

from __future__ import annotations

EXIT_TRANSIENT = 1
EXIT_PERMANENT = 2


class Permanent(Exception):  # noqa: N818  (a state of affairs, not only an error)
    """Trying again cannot help: a person has to change something first."""


class Transient(Exception):  # noqa: N818
    """Trying again may help: a network that is down, a server that is busy."""


def plain(error: BaseException) -> str:
    """One line for an error of the system, without the noise of nested reprs."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return plain(reason)
    strerror = getattr(error, "strerror", None)
    text = strerror if isinstance(strerror, str) and strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def files(count: int) -> str:
    """Write a number of files with the right word."""
    return "1 file" if count == 1 else f"{count} files"


def human(size: float) -> str:
    """Bytes as a person reads them: decimal units, as disks and model cards count."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
