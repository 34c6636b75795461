"""Describe what a recording was read from, and what is in none of its files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.show.text.formats import clean

if TYPE_CHECKING:
    from kimi_prov.contract.documents.check import CheckedTarget

# Files of a recording that are named.
_MAX_FILES = 20


def describe_reading(target: CheckedTarget) -> str:
    """Describe it in a line; empty for a target that is no recording."""
    recorded = target["facts"].get("recorded")
    if recorded is None:
        return ""
    by_file: dict[str, list[str]] = {}
    for row in recorded["read"]:
        by_file.setdefault(row["file"], []).append(row["what"])
    read = [
        file if kinds == [file] else f"{file} ({', '.join(dict.fromkeys(kinds))})"
        for file, kinds in by_file.items()
    ]
    shown = read[:_MAX_FILES] + [f"{len(read) - _MAX_FILES} more"] * (len(read) > _MAX_FILES)
    parts = [f"Read of {target['name']}: {', '.join(shown)}."]
    if recorded["not_told"]:
        parts.append(f"Not told: {', '.join(recorded['not_told'])}.")
    damaged = [f"{row['file']} ({row['problem']})" for row in recorded["damaged"]]
    if damaged:
        parts.append(f"Damaged: {', '.join(damaged[:_MAX_FILES])}.")
    skipped = recorded["skipped"]
    if skipped:
        parts.append(f"Not used: {'; '.join(skipped[:_MAX_FILES])}.")
    return clean(" ".join(parts))
