"""Argument lists of engines, where each flag takes any number of values."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def remove_flags(words: Sequence[str], flags: Collection[str]) -> list[str]:
    """Remove these flags (`--name`, also as `--name=VALUE`), each with its values."""
    found: list[str] = []
    skipping = False
    for word in words:
        if word.startswith("--"):
            skipping = word.partition("=")[0] in flags
        if not skipping:
            found.append(word)
    return found
