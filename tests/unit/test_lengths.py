"""What a person reads at once stays small: a folder, a file, a function.

Nothing is added to the exceptions, and no number is raised; one that fits leaves them.
"""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING

from source_nodes import PACKAGE, nodes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MAX_FILES, MAX_LINES, MAX_FUNCTION_LINES = 35, 600, 60

FOLDERS = {
    # One file a command.
    "commands": 64,
    "catalog": 40,
    # One file a document.
    "schemas": 36,
}
FILES = {}
# The longest function of a file.
FUNCTIONS = {
    "on_host/probe/cuda_child.py": 70,
}


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def too_large(sizes: dict[str, int], most: int, exceptions: dict[str, int]) -> dict[str, int]:
    """Return what is larger than it may be, and exceptions that are needed no more."""
    large = {name: size for name, size in sizes.items() if size > exceptions.get(name, most)}
    return large | {name: sizes.get(name, 0) for name in exceptions if sizes.get(name, 0) <= most}


def test_a_folder_has_few_files() -> None:
    files = [file for file in PACKAGE.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    sizes = Counter(name_of(file.parent) for file in files)
    shrinking = {name: most for name, most in FOLDERS.items() if name != "commands"}
    assert sizes.pop("commands") <= FOLDERS["commands"]
    assert too_large(sizes, MAX_FILES, shrinking) == {}


def test_a_file_has_few_lines() -> None:
    sizes = {name_of(file): len(file.read_text().splitlines()) for file in nodes()}
    assert too_large(sizes, MAX_LINES, FILES) == {}


def longest_function(inside: Iterable[ast.AST]) -> int:
    functions = [n for n in inside if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return max(((node.end_lineno or 0) - node.lineno + 1 for node in functions), default=0)


def test_a_function_has_few_lines() -> None:
    sizes = {name_of(file): longest_function(inside) for file, inside in nodes().items()}
    assert too_large(sizes, MAX_FUNCTION_LINES, FUNCTIONS) == {}
