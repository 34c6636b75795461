"""Adds lines to the variables of a host in an inventory.

Decides: into which file a tune writes.
Held by: tests/unit/commands/test_tune_command.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.planner.tuning import inventory_lines
from kimi_prov.show.output import write_whole

if TYPE_CHECKING:
    from pathlib import Path

_ENDINGS = (".yml", ".yaml", "")


def add_host_lines(inventory: Path, host: str, lines: str) -> Path:
    """Add lines at the end of a host's file of variables, or of a new one; return it.

    Raises UserError where the file sets one of these variables, and where it cannot be written.
    """
    if "/" in host or host.startswith("."):
        raise UserError(
            f"{clean_text.clean_line(host)} is no name of a file",
            fix=f"take these lines into the inventory yourself:\n{lines}",
        )
    file = _find_file(inventory if inventory.is_dir() else inventory.parent, host)
    try:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        added = inventory_lines.add_lines(text, lines, str(file))
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, added)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{file}: {error}", fix=f"take these lines into it yourself:\n{lines}"
        ) from None
    return file


def _find_file(folder: Path, host: str) -> Path:
    """Find the file that Ansible reads for the host: the first of these that is there."""
    base = folder / "host_vars"
    if (base / host).is_dir():
        return base / host / "tune.yml"
    files = [base / f"{host}{ending}" for ending in _ENDINGS]
    return next((file for file in files if file.is_file()), files[0])
