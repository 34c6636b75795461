"""Finds the file and line where an inventory sets a variable, for messages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov import inventory_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_MAX_FILES = 2000
_MAX_BYTES = 1 << 20


def make_locator(
    sources: Iterable[str | Path], extra: Iterable[str] = ()
) -> Callable[[str], str | None]:
    """Make a function that returns "FILE:LINE" of a variable in these inventory sources, or None.

    `sources` are the files or directories of -i; `extra` are variables of the command line.
    """
    extra_names = set(extra)
    roots = [Path(source) for source in sources]

    def locate(name: str) -> str | None:
        if name in extra_names:
            return f"-e {name}"
        word = re.escape(name)
        pattern = re.compile(rf"""^\s*(?:-\s*)?["']?{word}["']?\s*[:=]|\s{word}=""")
        for path in _list_files(roots):
            try:
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue
            for line_number, line in enumerate(lines, 1):
                if pattern.search(line):
                    return f"{path}:{line_number}"
        return None

    return locate


def _list_files(roots: Iterable[Path]) -> list[Path]:
    """List the inventory files and the files of variables beside them."""
    files: list[Path] = []
    for root in roots:
        hosts = sorted(root.iterdir()) if root.is_dir() else [root]
        files += [
            path
            for path in (*hosts, *inventory_files.list_variable_files(root))
            if _is_readable(path)
        ]
    return list(dict.fromkeys(files))[:_MAX_FILES]


def _is_readable(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size <= _MAX_BYTES
    except OSError:
        return False
