"""Prepared weights on the disk: what engines wrote for their next start, and what was put aside.

The plugin names the files by rank and key: `RANK-KEY.prepared`, `*.prepared.damaged`, and
`.*.partial` while it writes. Only the engine reads their content, and checks it at every start. It
notes each use in the time of a file's last change. The folder's name has all that a plan says of
the key, so that of one rank only the newest file can still be asked for on this machine.

Held by: tests/component/on_host/history/test_prepared_files.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
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
    """A file that counts, that was put aside, or whose rank has a newer one with another key."""

    path: Path
    bytes: int
    aside: bool
    older: bool = False

    @property
    def counts(self) -> bool:
        """Whether a start may copy it."""
        return not (self.aside or self.older)


def get_folder(plan: Plan) -> str | None:
    """Return the folder that a plan names; None where it has none, as earlier versions' plans."""
    kept = None if gateways.is_gateway(plan) else plan.get("prepared_weights")
    return kept["dir"] if kept else None


def list_needed_folders(plan: Plan) -> set[str]:
    """List the folder that a plan names, and in it those of its engines."""
    folder = get_folder(plan)
    if folder is None:
        return set()
    return {folder, *(f"{folder}/{index}" for index in range(len(plan["instances"])))}


def list_folders(paths: Paths) -> list[Path]:
    """List all folders of prepared weights, of any plan."""
    top = paths.locate(layout.PREPARED)
    if not top.is_dir():
        return []
    return sorted(path for path in top.iterdir() if path.is_dir() and not path.is_symlink())


def list_files(folder: Path) -> list[Stored]:
    """List the files of a folder; one that is written just now, or is a link, is none."""
    stored = list(_find_files(folder))
    newest: dict[tuple[Path, str], int] = {}
    for row, used in stored:
        if not row.aside:
            newest[_name_rank(row)] = max(used, newest.get(_name_rank(row), 0))
    return sorted(
        row._replace(older=not row.aside and used < newest[_name_rank(row)]) for row, used in stored
    )


def _name_rank(row: Stored) -> tuple[Path, str]:
    return row.path.parent, row.path.name.rpartition("-")[0]


def _find_files(folder: Path) -> Iterator[tuple[Stored, int]]:
    """Find the files, each with the time of its last use."""
    # The folder is the engine's user's, which may put a link to any place into it.
    engines = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    for path in (file for engine in engines for file in engine.iterdir()):
        aside = path.name.endswith(_ASIDE)
        # An engine may put a file aside meanwhile.
        with contextlib.suppress(FileNotFoundError):
            about = path.lstat()
            if stat.S_ISREG(about.st_mode) and (aside or path.name.endswith(_WHOLE)):
                yield Stored(path, about.st_blocks * 512, aside), about.st_mtime_ns


def remove_file(path: Path) -> None:
    """Remove a file of an engine; a link that stands in the way to it is not followed.

    One that is gone meanwhile is no error.
    """
    folder, engine = path.parent.parent, path.parent.name
    with contextlib.ExitStack() as opened:
        try:
            above = _open_folder(opened, str(folder), None)
            inside = _open_folder(opened, engine, above)
            os.unlink(path.name, dir_fd=inside)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            # A link, or a folder in place of the file: nothing of ours.
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.EPERM):
                raise


def _open_folder(opened: contextlib.ExitStack, name: str, above: int | None) -> int:
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
    opened.callback(os.close, folder)
    return folder


def build_status(paths: Paths, plan: Plan) -> PreparedStatus | None:
    """Describe the planned folder's files; None for a plan that says nothing of them."""
    kept = None if gateways.is_gateway(plan) else plan.get("prepared_weights")
    if not kept:
        return None
    files = list_files(paths.locate(kept["dir"])) if kept["dir"] else []
    return {
        "planned": kept["enabled"],
        "reason": kept["reason"],
        "files": sum(row.counts for row in files),
        "put_aside": sum(row.aside for row in files),
        "older": sum(row.older for row in files),
        "bytes": sum(row.bytes for row in files),
    }
