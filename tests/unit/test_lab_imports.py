"""The test lab stands on the product, never the product on the lab."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kimi_prov

PACKAGE = Path(kimi_prov.__file__).resolve().parent
LAB = "kimi_prov.lab"


def lab_imports(source: str, package: str) -> list[str]:
    """Modules of the lab that a source imports, anywhere in it and for types alone as well."""
    named: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            named += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            parts = [*(above if node.level else []), *([node.module] if node.module else [])]
            origin = ".".join(parts)
            named += [f"{origin}.{alias.name}" for alias in node.names]
    return [name for name in named if f"{name}.".startswith(f"{LAB}.")]


def test_nothing_but_the_lab_and_its_commands_imports_the_lab() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        if module == "kimi_prov.cli" or f"{module}.".startswith(f"{LAB}."):
            continue
        package = module.rpartition(".")[0]
        found += [
            f"{module} imports {name}"
            for name in lab_imports(path.read_text(encoding="utf-8"), package)
        ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("import kimi_prov.lab.state", ["kimi_prov.lab.state"]),
        ("from kimi_prov import lab", ["kimi_prov.lab"]),
        ("from kimi_prov.lab.state import x", ["kimi_prov.lab.state.x"]),
        ("from ..lab import state", ["kimi_prov.lab.state"]),
        ("if TYPE_CHECKING:\n    from kimi_prov.lab import state", ["kimi_prov.lab.state"]),
        ("def f():\n    import kimi_prov.lab", ["kimi_prov.lab"]),
        ("from kimi_prov.label import x", []),
    ],
)
def test_every_form_of_import_counts(source: str, named: list[str]) -> None:
    assert lab_imports(source, "kimi_prov.runner") == named
