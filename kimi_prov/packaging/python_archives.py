"""Find the archive of an interpreter in a directory on the control machine."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote

from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.contract.documents.plan.software import BroughtPython


def find(directory: Path, python: BroughtPython) -> Path:
    """Return the file of the plan's `installation.python` in `directory` or its build's folder.

    A mirror has a folder for each build. The name may hold the %2B of its URL. The digest is
    compared later, before the archive is unpacked. Raises UserError where there is no such file.
    """
    archive = PurePosixPath(str(python["archive"])).name
    for folder in (directory / python["build"], directory):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if unquote(path.name) == archive and path.is_file():
                return path
    raise UserError(
        f"kimi_python_mirror: {directory} has no {archive}",
        fix=f"put that archive there (SHA-256 {python['sha256']}), or name a mirror by its URL",
    )
