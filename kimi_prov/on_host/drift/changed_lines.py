"""The lines by which a file differs from what was applied, where an entry of the history has them.

Only of files that everybody may read, and no line that names a secret.

Decides: what `drift` shows of a changed file.
Applied by: playbooks/drift.yml.
Held by: tests/component/on_host/history/test_drift_lines.py.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import stat
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.unit_comparison import has_secret_name
from kimi_prov.on_host.history import entries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kimi_prov.contract.paths import Paths
    from kimi_prov.on_host.drift.difference import Difference

_MAX_BYTES = 256 << 10
_MAX_LINES = 3
_MAX_LENGTH = 120


def add_lines(
    paths: Paths, was: Mapping[str, Any], differences: Sequence[Difference]
) -> list[Difference]:
    """Return the differences, those of files with the lines that were applied and that are there.

    `was`: the record of the last apply.
    """
    rows = {row["path"]: row for row in was.get("files") or ()}
    return [
        _add_to(paths, was, rows[one.subject], one)
        if one.id == "drift.file" and one.subject in rows
        else one
        for one in differences
    ]


def _add_to(
    paths: Paths, was: Mapping[str, Any], row: Mapping[str, Any], one: Difference
) -> Difference:
    entry = was.get("entry")
    if not isinstance(entry, int) or not int(row["mode"], 8) & stat.S_IROTH:
        return one
    try:
        copy = entries.find_copy(paths, {"number": entry}, row["path"])
        present = paths.locate(row["path"])
        before, after = _read(copy), _read(present)
        is_open = present.stat().st_mode & stat.S_IROTH
    except (OSError, ValueError):
        return one
    if not is_open or hashlib.sha256(before.encode()).hexdigest() != row["sha256"]:
        return one
    # Without its two lines of names.
    compared = [*difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")]
    gone, new = (
        _join([line[1:] for line in compared[2:] if line.startswith(mark)]) for mark in "-+"
    )
    return dataclasses.replace(
        one,
        expected=f"{one.expected}{gone and f', {gone}'}",
        observed=f"{one.observed}{new and f', {new}'}",
    )


def _read(path: Path) -> str:
    """Return a small text. Raises OSError or ValueError for what is none."""
    # A pipe would be waited for, and a link be followed.
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError("no file")
    with path.open("rb") as stream:
        content = stream.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError("too long to compare")
    return content.decode()


def _join(lines: Sequence[str]) -> str:
    shown = [
        "a line that names a secret" if has_secret_name(line) else line.strip()[:_MAX_LENGTH]
        for line in lines
        if line.strip()
    ]
    more = [f"and {len(shown) - _MAX_LINES} more"] if len(shown) > _MAX_LINES else []
    return "; ".join([*shown[:_MAX_LINES], *more])
