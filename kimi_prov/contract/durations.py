"""The form of a measured time for people, everywhere: progress, summaries, status."""

from __future__ import annotations


def format_duration(seconds: float) -> str:
    """Format a time of `seconds`: 4.1 s, 3:05, 1:02:05."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def describe_duration(seconds: float) -> str:
    """Format a time to come, as people say it: 40 s, 12 min, 3 h."""
    if seconds < 90:
        return f"{round(seconds)} s"
    return f"{round(seconds / 60)} min" if seconds < 7200 else f"{round(seconds / 3600)} h"
