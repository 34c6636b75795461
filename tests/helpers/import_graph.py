"""Which module of the package imports which: read from the source, type-only imports included."""

from __future__ import annotations

import ast
from pathlib import Path

import kimi_prov

PACKAGE = Path(kimi_prov.__file__).parent
# Packages that run elsewhere; nothing here imports them.
_ELSEWHERE = "engine_plugins"

# From the ground up: a module imports from its own floor and from those before it in this list.
FLOORS = (
    ("schemas",),
    ("contract",),
    ("errors", "user_dirs"),
    ("on_host",),
    ("catalog",),
    ("packaging",),
    ("facts",),
    ("planner",),
    ("report",),
    ("runner",),
    ("acceptance",),
    ("ansible",),
    ("lab",),
    ("console",),
    ("commands",),
    ("cli",),
)


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Return every module's dotted name, without the package's own, and its file."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        if parts[0] == _ELSEWHERE:
            continue
        found[".".join(part for part in parts if part != "__init__")] = file
    return found


def graph(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Return for each module the modules of the package that it imports."""
    known = modules(package)
    return {name: _imported(file, known, package.name) - {name} for name, file in known.items()}


def _imported(file: Path, known: dict[str, Path], package: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                # `from package import module` names a module; `from module import thing` does not.
                full = f"{node.module}.{name.name}"
                found.add(full if full.removeprefix(f"{package}.") in known else node.module)
    own = {name.removeprefix(f"{package}.") for name in found if name.startswith(f"{package}.")}
    return {name for name in own if name in known}


def floor(module: str) -> int:
    """Return the number of a module's floor. Raises KeyError for one that has none."""
    room = module.partition(".")[0]
    return {room: number for number, rooms in enumerate(FLOORS) for room in rooms}[room]


def upward(imports: dict[str, set[str]]) -> list[str]:
    """Name each import of a higher floor: `A imports B, which lies above it`."""
    return [
        f"{module} imports {other}, which lies above it"
        for module, others in sorted(imports.items())
        for other in sorted(others)
        if module and other and floor(other) > floor(module)
    ]


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return each set of modules that import each other in a circle, sorted."""
    reach: dict[str, set[str]] = {}
    for start in imports:
        seen, waiting = set[str](), [start]
        while waiting:
            for other in imports[waiting.pop()] - seen:
                seen.add(other)
                waiting.append(other)
        reach[start] = seen
    tied = {
        tuple(sorted({module} | {m for m in reach[module] if module in reach[m]}))
        for module in imports
        if module in reach[module]
    }
    return [list(group) for group in sorted(tied)]
