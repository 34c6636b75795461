"""Which module of kimi_prov imports which, and the layers that these imports must keep to.

Read from the source, imports for types alone included. docs/picture.py draws it;
tests/unit/test_import_directions.py holds it.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGE = Path(__file__).resolve().parent.parent / "kimi_prov"
# Runs inside an engine's environment; nothing imports it.
_SEPARATE = "engine_plugins"

# Lowest first. A module imports from its own package and from the packages of lower layers.
LAYERS = (
    ("contract", "errors", "monitoring", "schemas", "user_dirs"),
    ("documents",),
    ("catalog", "inventory_files", "on_host", "packaging"),
    ("clients", "facts", "lab", "runner"),
    ("sizing",),
    ("console", "planner", "report"),
    ("acceptance", "render"),
    ("operate",),
    ("ansible", "commands"),
    ("cli",),
    ("__main__",),
)

Graph = dict[str, set[str]]


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Return every module's dotted name, without the package's own, and its file."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        if parts[0] == _SEPARATE:
            continue
        found[".".join(part for part in parts if part != "__init__")] = file
    return found


def plugins() -> list[Path]:
    """Return the package of each engine plugin: nothing imports it, and it has its own imports."""
    return sorted(file.parent for file in (PACKAGE / _SEPARATE).glob("*/*/__init__.py"))


def module_imports(package: Path = PACKAGE) -> Graph:
    """Return for each module the modules of the package that it imports."""
    known = modules(package)
    return {name: _imported(file, known, package.name) - {name} for name, file in known.items()}


def package_imports(imports: Mapping[str, set[str]]) -> Graph:
    """Return for each package, or module of the top level, the others that it imports."""
    found: Graph = {}
    for module, others in imports.items():
        package = _package(module)
        if package:
            found.setdefault(package, set()).update(_package(other) for other in others)
    return {package: others - {package, ""} for package, others in found.items()}


def _package(module: str) -> str:
    return module.partition(".")[0]


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


def layer(module: str) -> int:
    """Return the number of a module's layer, 0 for the lowest. Raises KeyError for one without."""
    return {name: at for at, names in enumerate(LAYERS) for name in names}[_package(module)]


def upward(imports: Mapping[str, set[str]]) -> list[str]:
    """Name each import of another package that is not in a lower layer."""
    return [
        f"{module} imports {other}, which is not in a lower layer"
        for module, others in sorted(imports.items())
        for other in sorted(others)
        if module and other and _package(module) != _package(other)
        if layer(other) >= layer(module)
    ]


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return each set of modules that import each other in a circle, sorted."""
    reach: Graph = {}
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
