"""Which module of kimi_prov imports which, and the layers that these imports must keep to.

Read from the source, imports for types alone included. docs/diagram.py draws it;
tests/unit/test_import_directions.py holds it.

Decides: which package may import which.
Held by: tests/unit/test_import_directions.py.
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
    ("contract", "errors", "monitoring", "user_dirs"),
    ("documents", "schemas"),
    ("catalog", "inventory_files", "on_host", "packaging"),
    ("clients", "facts", "lab"),
    ("sizing",),
    ("planner",),
    ("runner",),
    ("show",),
    ("acceptance", "render"),
    ("operate",),
    ("ansible", "commands"),
    ("cli",),
    ("__main__",),
)

# Inside a package, its rooms: folders, and modules that lie loose. Lowest first. A module imports
# from its own room and from rooms of earlier rows, never from another room of its own row.
ROOMS = {
    "on_host": (
        "troubles",
        "system",
        "endpoint monitor probe web",
        "destroy engine weights",
        "usage",
        "acceptance driver group keys kt lifecycle watchdog",
        "bench cloud cluster converged proxy",
        "history pod",
        "backup drift tune update",
        "metrics status",
        "diagnose",
        "__main__",
    ),
    "planner": (
        "registry settings",
        "findings",
        "decisions stand_in",
        "hosts placement storage",
        "engine service",
        "memory software throughput",
        "rules selection",
        "remediation web",
        "gateways machine_plan",
        "plan",
        "measurements tuning",
    ),
    "show": ("streams", "exit_handling output", "text", "live report"),
    "commands": ("common", "access check", "kubernetes render slurm"),
}
# What lies loose in these packages is one file a command, above all their rooms.
LOOSE_ON_TOP = {"commands"}

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


def room(module: str) -> str:
    """Return the room of a module inside its package; empty for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def room_row(module: str) -> int:
    """Return the row of a module's room. Raises KeyError for a room that no row names."""
    package, rows = _package(module), ROOMS[_package(module)]
    rooms = {name: at for at, names in enumerate(rows) for name in names.split()}
    loose = package in LOOSE_ON_TOP and module.count(".") == 1
    return rooms.get(room(module), len(rows)) if loose else rooms[room(module)]


def across_rooms(imports: Mapping[str, set[str]]) -> list[str]:
    """Name each import inside a package of a room that is not in an earlier row."""
    return [
        f"{module} imports {other}, whose room is not in an earlier row"
        for module, others in sorted(imports.items())
        for other in sorted(others)
        if _package(module) == _package(other) and _package(module) in ROOMS
        if room(module) and room(other) and room(module) != room(other)
        if room_row(other) >= room_row(module) and not _loose_pair(module, other)
    ]


def _loose_pair(module: str, other: str) -> bool:
    """Whether both lie loose on top of a package: the circles of modules hold these."""
    package = _package(module)
    top = len(ROOMS[package])
    return package in LOOSE_ON_TOP and room_row(module) == room_row(other) == top


def rooms_in_circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return each set of rooms, of any package at any depth, that import each other in a circle."""
    packages = {""} | {
        ".".join(parts[:depth])
        for parts in (module.split(".") for module in imports)
        for depth in range(1, len(parts))
    }
    found = []
    for package in sorted(packages):
        rooms: Graph = {}
        for module, others in imports.items():
            here = _child(package, module)
            if here:
                rooms.setdefault(here, set()).update(_child(package, other) for other in others)
        found += circles({name: others - {name, ""} for name, others in rooms.items()})
    return found


def _child(package: str, module: str) -> str:
    """Return the room of a package in which a module lies, as a dotted name; empty outside it."""
    inside = module.removeprefix(f"{package}.") if package else module
    if (package and inside == module) or not module:
        return ""
    name = inside.partition(".")[0]
    return f"{package}.{name}" if package else name


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
