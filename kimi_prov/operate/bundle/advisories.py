"""Known security faults of the packages of locks, as pip-audit finds them where it is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kimi_prov.contract.documents.bundle import Advisory

_TOOL = "pip-audit"
_TIMEOUT_S = 900.0


class UnknownError(Exception):
    """Nobody could be asked; its text says why."""


def find_advisories(locks: Iterable[str]) -> list[Advisory]:
    """Return the faults of all pinned packages by PyPI's database. Raises UnknownError."""
    if shutil.which(_TOOL) is None:
        message = f"{_TOOL} is not installed here"
        raise UnknownError(message)
    rows = [row for lock in locks for row in parse_report(*_run_audit(lock))]
    unique = {(row["package"], row["version"], row["id"]): row for row in rows}
    return [unique[key] for key in sorted(unique)]


def _run_audit(lock: str) -> tuple[str, str]:
    """Run pip-audit on one lock, of which it installs nothing: return what it printed."""
    with tempfile.TemporaryDirectory(prefix="kimi-audit-") as folder:
        path = Path(folder, "lock.txt")
        path.write_text(lock, encoding="utf-8")
        command = [_TOOL, "--no-deps", "--disable-pip", "--requirement", str(path)]
        try:
            done = subprocess.run(
                [*command, "--format=json", "--progress-spinner=off"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            message = f"{_TOOL} gave no answer in {_TIMEOUT_S:.0f} s"
            raise UnknownError(message) from None
    return done.stdout, done.stderr


def parse_report(text: str, errors: str = "") -> list[Advisory]:
    """Read pip-audit's JSON. Raises UnknownError for another text, and where it knew nothing."""
    try:
        packages = json.loads(text)["dependencies"]
        known = [row for row in packages if "skip_reason" not in row]
        rows: list[Advisory] = [
            {
                "id": str(fault["id"]),
                "package": str(package["name"]),
                "version": str(package["version"]),
                "fixed_in": [str(version) for version in fault["fix_versions"]],
            }
            for package in known
            for fault in package["vulns"]
        ]
    except (ValueError, KeyError, TypeError):
        # It exits 1 both with faults and where it fails.
        last = (errors.strip().splitlines() or ["no message"])[-1]
        message = f"{_TOOL} failed: {last}"
        raise UnknownError(message) from None
    if packages and not known:
        message = f"{_TOOL} knew none of the {len(packages)} packages: {packages[0]['skip_reason']}"
        raise UnknownError(message)
    return rows
