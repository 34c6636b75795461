"""A folder on a disk of its own that is full to the last block, as root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """Have a folder with what is in it on a disk that takes nothing more, until the end.

    What was written to it meanwhile is gone then, and what was there before is there again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    try:
        for name, content in kept.items():
            (folder / name).write_bytes(content)
        with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"0" * 4096)
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
