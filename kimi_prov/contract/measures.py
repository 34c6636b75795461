"""Numbers as a person reads them."""

from __future__ import annotations


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
