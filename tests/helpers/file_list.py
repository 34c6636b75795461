"""The list of files, owners and modes in the docs, as tests read it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "files.md"
_ROW = re.compile(r"^\| `([^`]+)` \|(.*)\|$", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """One line of the list; owner and mode are empty where any will do."""

    path: str
    owner: str
    mode: str
    secret: bool

    def names(self, path: str) -> bool:
        """Whether the line is about this path."""
        return _expression(self.path).fullmatch(path) is not None

    def allows(self, owner: str, mode: int) -> bool:
        """Whether a file may have this owner and mode."""
        if self.owner not in ("", owner):
            return False
        return not mode & 0o022 if self.mode == "go-w" else self.mode in ("", f"{mode:04o}")


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    words = {"**": ".+", "*": "[^/]+"}
    parts = re.split(r"(\*\*|\*)", pattern)
    return re.compile("".join(words.get(part) or re.escape(part) for part in parts))


def rows(*, managed: bool) -> list[Row]:
    """Return the lines about the managed machine, or those about the control machine."""
    text = PAGE.read_text().partition("## On the control machine")[0 if managed else 2]
    found = []
    for path, rest in _ROW.findall(text):
        *about, secret = [cell.strip() for cell in rest.split("|")]
        owner, mode = about if managed else ("", *about)
        found.append(Row(path, owner, mode, secret.startswith("yes")))
    return found


def row_of(path: str, among: list[Row]) -> Row | None:
    """Return the first line about a path."""
    return next((row for row in among if row.names(path)), None)
