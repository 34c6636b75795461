"""Folders of the user who runs kimi-prov."""

from __future__ import annotations

import os
from pathlib import Path


def state_home() -> Path:
    """Folder of this user's state: $XDG_STATE_HOME/kimi-prov, else ~/.local/state/kimi-prov."""
    return _base("XDG_STATE_HOME", ".local/state")


def cache_home() -> Path:
    """Folder of what can be made again: $XDG_CACHE_HOME/kimi-prov, else ~/.cache/kimi-prov."""
    return _base("XDG_CACHE_HOME", ".cache")


def _base(variable: str, fallback: str) -> Path:
    # A relative path does not count: the XDG base directory specification says so.
    value = os.environ.get(variable, "")
    return (Path(value) if value.startswith("/") else Path.home() / fallback) / "kimi-prov"
