"""What is reported of machines that are skipped, because one before them failed or was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def describe_reason(failed: Sequence[str]) -> str:
    """Say of one of them why it was not changed."""
    return f"left as it is: {', '.join(failed)} failed before its turn"


def describe_skipped(failed: Sequence[str], waiting: Sequence[str]) -> str:
    """Name all of them."""
    return f"left as they are, for {', '.join(failed)} failed: {', '.join(waiting)}"
