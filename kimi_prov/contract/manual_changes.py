"""A folder that is written repeatedly: files that somebody changed by hand are left alone."""

from __future__ import annotations

UNCHANGED = "unchanged"
KEPT = "kept"
WRITTEN = "written"
REMOVED = "removed"


def decide_on_write(there: str | None, former: str | None, new: str, *, force: bool) -> str:
    """Return what happens to a file: UNCHANGED, KEPT or WRITTEN.

    Digests: of the present file (None: no file), of what was written last, and of what is to be
    written.
    """
    if there == new:
        return UNCHANGED
    return KEPT if there is not None and there != former and not force else WRITTEN


def decide_on_removal(there: str, former: str, *, force: bool) -> str:
    """Return what happens to a file that is not written any more: KEPT or REMOVED."""
    return KEPT if there != former and not force else REMOVED
