"""What is reported of machines that are skipped, because one before them failed or was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def describe_reason(failed: Sequence[str]) -> str:
    """Return why one of these machines was not changed."""
    return f"not changed: {', '.join(failed)} failed before its batch"


def describe_skipped(failed: Sequence[str], waiting: Sequence[str]) -> str:
    """Name all of these machines and the reason."""
    return f"not changed, because {', '.join(failed)} failed: {', '.join(waiting)}"
