"""The table of what is decided in which file, from the `Decides:` lines of the files themselves.

A docstring of a module, or the comment at the head of another file, may end with such lines:

    Decides: the memory budget (of vLLM on GPUs).
    Applied by: roles/serve.
    Held by: tests/unit/planner/memory/test_gpu.py.

Files that name one subject share a row; what stands in parentheses says which part of it is the
file's. A file may decide several things, one after the other. The first file of the row is the one
that names the tests.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from markup import table

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
_PLACES = ("docs", "kimi_prov", "tests/audit", "tests/locks", "tests/release")
_OTHERS = ("pyproject.toml", "kimi_prov/catalog/locks/refresh")
_FIELD = re.compile(r"^(Decides|Applied by|Held by): +", re.MULTILINE)
_SUBJECT = re.compile(r"^(?P<subject>.*?)(?: \((?P<part>.*)\))?$", re.DOTALL)
# What may be named in place of a path: `templates of the roles`.
_PATH = re.compile(r"^(?:tests|roles|playbooks|docs)(?:/|$)")


@dataclass
class Row:
    """One subject: the files that decide it, each with its part, who applies it, which tests."""

    subject: str
    first: str = ""
    files: list[tuple[str, str]] = field(default_factory=list)
    applied: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)


def rows(root: Path = ROOT) -> list[Row]:
    """Return every subject sorted by its first file. Raises ValueError for a faulty line."""
    found: dict[str, Row] = {}
    for file in _files(root):
        name = str(file.relative_to(root)).removesuffix("/__init__.py")
        for key, value in _fields(_head(file)):
            if key == "Decides":
                match = _SUBJECT.match(value)
                assert match is not None  # noqa: S101  (it matches any text)
                row = found.setdefault(match["subject"], Row(match["subject"]))
                row.files.append((name, match["part"] or ""))
                continue
            entries = row.applied if key == "Applied by" else row.held
            entries += value.split(", ")
            if key == "Held by":
                row.first = row.first or name
    if faults := [fault for row in found.values() for fault in _faults(row, root)]:
        raise ValueError("\n".join(faults))
    for row in found.values():
        row.files.sort(key=lambda file: file[0] != row.first)
    return sorted(found.values(), key=lambda row: (_package(row), row.first))


def _package(row: Row) -> str:
    """Return the package of a row's first file; empty for one outside kimi_prov."""
    parts = Path(row.first).parts
    if parts[0] != "kimi_prov":
        return ""
    return "kimi_prov" if len(parts) == 2 and parts[1].endswith(".py") else "/".join(parts[:2])


def _files(root: Path) -> Iterator[Path]:
    for place in _PLACES:
        for kind in ("*.py", "*.yaml"):
            yield from sorted((root / place).rglob(kind))
    yield from (root / name for name in _OTHERS if (root / name).exists())


def _head(file: Path) -> str:
    """Return the docstring of a module, or the comment at the head of another file."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "") if "\nDecides: " in text else ""
    comment = re.match(r"(?:#!.*\n)?((?:#.*\n)*)", text)
    return re.sub(r"^# ?", "", comment[1], flags=re.MULTILINE) if comment else ""


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """Give each field of the lines with its value on one line, without the period."""
    found = list(_FIELD.finditer(text))
    for match, following in zip_longest(found, found[1:]):
        value = text[match.end() : following.start() if following else None]
        value = value.partition("\n\n")[0]
        yield match[1], " ".join(value.split()).removesuffix(".")


def _faults(row: Row, root: Path) -> Iterator[str]:
    where = f"{row.first or row.files[0][0]}: Decides: {row.subject}"
    if not row.held:
        yield f"{where}: no file says which test holds it (Held by:)"
    if len(row.files) == 1 and row.files[0][1]:
        yield f"{where}: no other file decides the rest of it"
    for name in (*row.applied, *row.held):
        if _PATH.match(name) and not (root / name).exists():
            yield f"{where}: {name} does not exist"
    for name in row.held:
        if not _PATH.match(name):
            yield f"{where}: {name} is no path of a test"


def lines() -> list[str]:
    """Return the tables, one for each package."""
    found: list[str] = []
    for package, group in groupby(rows(), key=_package):
        found += ["", f"## {package or 'Outside the package'}", ""]
        head = ("to change", "decided in", "applied by", "held by")
        found += table(head, map(_cells, group))
    return found


def _cells(row: Row) -> tuple[str, ...]:
    files = [f"`{name}`" + (f" ({part})" if part else "") for name, part in row.files]
    return row.subject, *map(", ".join, (files, map(_shown, row.applied), map(_shown, row.held)))


def _shown(name: str) -> str:
    return f"`{name}`" if _PATH.match(name) else name
