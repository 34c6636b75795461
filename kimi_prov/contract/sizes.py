"""The form of a number of bytes for people, everywhere: plans, progress, errors, reports."""

from __future__ import annotations


def format_bytes(size: float | None) -> str:
    """Format bytes in binary units with one decimal: 554.3 GiB, 32.0 MiB, 512 B; None is "unknown".

    One unit for all, files and disks included, because sizes that are shown together get added up
    and compared: weights go into GPU memory, RAM or a RAM disk, and those are sold and reported in
    powers of 1024 (nvidia-smi's MiB, /proc/meminfo, tmpfs). The hub and disk vendors write the same
    bytes in decimal units: 595 GB are 554 GiB. A rate of memory or of a disk stays in GB/s, as in
    its data sheet, and so does a figure in a product's name. JSON has bytes.
    """
    if size is None:
        return "unknown"
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(size) >= 1 << power:
            return f"{size / (1 << power):.1f} {unit}"
    return f"{size:.0f} B"


def format_file_count(count: int) -> str:
    """Format a number of files with the right word."""
    return "1 file" if count == 1 else f"{count} files"


# Less than both is left: the alert KimiDiskFull has the same bounds.
FULL_SHARE, FULL_BYTES = 0.05, 20_000_000_000


def is_nearly_full(free: int, size: int) -> bool:
    """Return whether a file system has so little space that logs, downloads and starts may fail."""
    return free < FULL_SHARE * size and free < FULL_BYTES
