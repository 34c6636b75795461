"""Prepared weights on the disk: what engines wrote for their next start, and what was put aside.

The plugin names the files: `*.prepared`, `*.prepared.damaged`, and `.*.partial` while it writes.
Only the engine reads their content, and checks it at every start.

Held by: tests/component/on_host/history/test_prepared_files.py.
"""

from __future__ import annotations

import contextlib
import stat
from typing import TYPE_CHECKING, NamedTuple

from kimi_prov.contract import gateways
from kimi_prov.contract import paths as layout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kimi_prov.contract.documents.plan import Plan
    from kimi_prov.contract.documents.status.machine import PreparedStatus
    from kimi_prov.contract.paths import Paths

MODE = 0o700
_WHOLE, _ASIDE = ".prepared", ".damaged"


class Stored(NamedTuple):
    """A file that counts, or that was put aside."""

    path: Path
    bytes: int
    aside: bool


def get_folder(plan: Plan) -> str | None:
    """Return the folder that a plan names; None where it has none, as earlier versions' plans."""
    kept = None if gateways.is_gateway(plan) else plan.get("prepared_weights")
    return kept["dir"] if kept else None


def list_folders(paths: Paths) -> list[Path]:
    """List all folders of prepared weights, of any plan."""
    top = paths.locate(layout.PREPARED)
    if not top.is_dir():
        return []
    return sorted(path for path in top.iterdir() if path.is_dir() and not path.is_symlink())


def list_files(folder: Path) -> list[Stored]:
    """List the files of a folder; one that is written just now, or is a link, is none."""
    return sorted(_find_files(folder))


def _find_files(folder: Path) -> Iterator[Stored]:
    for path in folder.glob("*/*"):
        aside = path.name.endswith(_ASIDE)
        # An engine may put a file aside meanwhile.
        with contextlib.suppress(FileNotFoundError):
            about = path.lstat()
            if stat.S_ISREG(about.st_mode) and (aside or path.name.endswith(_WHOLE)):
                yield Stored(path, about.st_blocks * 512, aside)


def build_status(paths: Paths, plan: Plan) -> PreparedStatus | None:
    """Describe the planned folder's files; None for a plan that says nothing of them."""
    kept = None if gateways.is_gateway(plan) else plan.get("prepared_weights")
    if not kept:
        return None
    files = list_files(paths.locate(kept["dir"])) if kept["dir"] else []
    return {
        "planned": kept["enabled"],
        "reason": kept["reason"],
        "files": sum(not row.aside for row in files),
        "put_aside": sum(row.aside for row in files),
        "bytes": sum(row.bytes for row in files),
    }
