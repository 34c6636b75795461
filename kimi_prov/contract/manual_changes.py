"""A folder that is written again and again: what somebody changed in it by hand is left alone."""

from __future__ import annotations

UNCHANGED = "unchanged"
KEPT = "kept"
WRITTEN = "written"
REMOVED = "removed"


def decide_on_write(there: str | None, former: str | None, new: str, *, force: bool) -> str:
    """Say what becomes of a file: UNCHANGED, KEPT or WRITTEN.

    Digests: of what is there now (None: nothing), of what was written last, and of what is to be.
    """
    if there == new:
        return UNCHANGED
    return KEPT if there is not None and there != former and not force else WRITTEN


def decide_on_removal(there: str, former: str, *, force: bool) -> str:
    """Say what becomes of a file that was written last and is not any more: KEPT or REMOVED."""
    return KEPT if there != former and not force else REMOVED
