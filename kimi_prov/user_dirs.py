"""Folders of the user who runs kimi-prov."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def find_state_home() -> Path:
    """Folder of this user's state: $XDG_STATE_HOME/kimi-prov, else ~/.local/state/kimi-prov."""
    return _find_base("XDG_STATE_HOME", ".local/state")


def find_cache_home() -> Path:
    """Folder of what can be made again: $XDG_CACHE_HOME/kimi-prov, else ~/.cache/kimi-prov."""
    return _find_base("XDG_CACHE_HOME", ".cache")


def make_private(folder: Path) -> None:
    """Make a folder that is this user's alone; one that was left open to others is closed."""
    for path in (*reversed(folder.parents), folder):
        # Those above it as well, as the XDG base directory specification has it.
        path.mkdir(exist_ok=True, mode=0o700)
    about = folder.stat()
    if about.st_uid == os.geteuid() and about.st_mode & 0o077:
        folder.chmod(0o700)


def write_private(path: Path, text: str) -> None:
    """Replace a file by one of mode 0600 in one step; where a link leads is left alone."""
    replace_file(path, text, 0o600)


def replace_file(path: Path, content: str | bytes, mode: int) -> None:
    """Replace a file whole or not at all: a reader never meets half of it, nor a wider mode."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content if isinstance(content, bytes) else content.encode())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _find_base(variable: str, fallback: str) -> Path:
    # A relative path does not count: the XDG base directory specification says so.
    value = os.environ.get(variable, "")
    return (Path(value) if value.startswith("/") else Path.home() / fallback) / "kimi-prov"
