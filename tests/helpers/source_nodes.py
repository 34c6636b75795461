"""The syntax of all of our modules, parsed once a run."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import kimi_prov

PACKAGE = Path(kimi_prov.__file__).resolve().parent


@functools.cache
def nodes() -> dict[Path, list[ast.AST]]:
    """Return all nodes of each module; what stands at its top level comes first."""
    files = [file for file in sorted(PACKAGE.rglob("*.py")) if "engine_plugins" not in file.parts]
    return {file: list(ast.walk(ast.parse(file.read_text(encoding="utf-8")))) for file in files}
