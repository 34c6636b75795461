"""A locale that is not UTF-8, made from the system's own sources."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LATIN = "en_US.ISO-8859-1"


def latin(folder: Path) -> dict[str, str]:
    """Make it below `folder` and return the variables by which a process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    target = str(folder / LATIN)
    subprocess.run(["localedef", "-i", "en_US", "-f", "ISO-8859-1", target], check=True)
    return {"LOCPATH": str(folder), "LC_ALL": LATIN}
