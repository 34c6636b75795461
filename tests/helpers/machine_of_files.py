"""Machines that the tests of the probe read: files alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.on_host.system.machine import Machine

if TYPE_CHECKING:
    from pathlib import Path


def tree(root: Path, files: dict[str, str]) -> Machine:
    """A machine that consists of these files."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(str(root))
