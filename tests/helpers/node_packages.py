"""Packages of npm, as a lock has them."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def installed(pins: Path, folder: Path, *options: str) -> Path:
    """Install what the two files in `pins` name into a folder, and return that."""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(pins / name, folder)
    # Not `npm ci`: it wants the builds for other systems in the lock too.
    words = ("npm", "install", "--no-save", "--no-audit", "--no-fund", *options)
    subprocess.run(words, cwd=folder, check=True, timeout=1800)
    return folder
