"""Imports run one way, type-only imports included, and no modules import each other in a circle.

Scripts and strings that import a module of the package name one that exists.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import import_graph
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROOT = import_graph.PACKAGE.parent
IMPORT = re.compile(r"\bfrom kimi_prov\.?([\w.]*) import (\w+(?:, *\w+)*)|-m kimi_prov\.([\w.]+\w)")


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    return import_graph.module_imports()


def test_every_package_has_its_layer(imports: dict[str, set[str]]) -> None:
    named = [package for layer in import_graph.LAYERS for package in layer]
    assert sorted(named) == sorted(import_graph.package_imports(imports))


def test_no_module_imports_upwards(imports: dict[str, set[str]]) -> None:
    assert import_graph.upward(imports) == []


def test_no_modules_import_each_other_in_a_circle(imports: dict[str, set[str]]) -> None:
    assert import_graph.circles(imports) == []


@pytest.mark.parametrize("name", sorted(import_graph.ROOMS))
def test_every_room_of_a_package_has_its_row(imports: dict[str, set[str]], name: str) -> None:
    named = {room for row in import_graph.ROOMS[name] for room in row.split()}
    folders = {m for m in imports if m.startswith(f"{name}.") and m.count(".") > 1}
    loose = {m for m in imports if m.startswith(f"{name}.") and m.count(".") == 1}
    there = {import_graph.room(m) for m in folders}
    if name not in import_graph.LOOSE_ON_TOP:
        there |= {import_graph.room(m) for m in loose}
    assert named == there


def test_no_room_imports_a_room_of_its_row_or_a_later_one(imports: dict[str, set[str]]) -> None:
    assert import_graph.across_rooms(imports) == []


def test_no_rooms_import_each_other_in_a_circle(imports: dict[str, set[str]]) -> None:
    assert import_graph.rooms_in_circles(imports) == []


@pytest.mark.parametrize("plugin", import_graph.plugins(), ids=lambda folder: folder.name)
def test_no_modules_of_a_plugin_import_each_other_in_a_circle(plugin: Path) -> None:
    imports = import_graph.module_imports(plugin)
    assert any(imports.values()) or len(imports) == 1
    assert import_graph.circles(imports) == []


def package(tmp_path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = tmp_path / "house" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "house"


@pytest.mark.parametrize(
    "line",
    [
        "from house.planner import plan",
        "from house.planner.plan import make",
        "import house.planner.plan",
        "def late():\n    from house.planner import plan",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.planner import plan",
    ],
)
def test_an_import_upwards_is_reported_with_both_names(tmp_path: Path, line: str) -> None:
    house = package(tmp_path, {"catalog/loader.py": line + "\n", "planner/plan.py": ""})
    found = import_graph.upward(import_graph.module_imports(house))
    assert found == ["catalog.loader imports planner.plan, which is not in a lower layer"]


def test_an_import_within_a_layer_is_reported_too(tmp_path: Path) -> None:
    files = {"commands/plan.py": "from house.ansible import remote", "ansible/remote.py": ""}
    found = import_graph.upward(import_graph.module_imports(package(tmp_path, files)))
    assert found == ["commands.plan imports ansible.remote, which is not in a lower layer"]


def test_a_circle_is_reported_with_all_its_names(tmp_path: Path) -> None:
    files = {
        "planner/a.py": "from house.planner import b",
        "planner/b.py": "if TYPE_CHECKING:\n    from house.planner.c import C",
        "planner/c.py": "from house.planner import a",
        "planner/d.py": "from house.planner import a",
    }
    circles = import_graph.circles(import_graph.module_imports(package(tmp_path, files)))
    assert circles == [["planner.a", "planner.b", "planner.c"]]


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (
            {
                "planner/registry/a.py": "from house.planner.plan import make",
                "planner/plan.py": "",
            },
            "planner.registry.a imports planner.plan, whose room is not in an earlier row",
        ),
        (
            {
                "planner/engine/a.py": "if TYPE_CHECKING:\n    from house.planner.service import b",
                "planner/service/b.py": "",
            },
            "planner.engine.a imports planner.service.b, whose room is not in an earlier row",
        ),
        (
            {"commands/common/a.py": "from house.commands import apply", "commands/apply.py": ""},
            "commands.common.a imports commands.apply, whose room is not in an earlier row",
        ),
    ],
)
def test_an_import_across_rooms_is_reported_with_both_names(
    tmp_path: Path, files: dict[str, str], found: str
) -> None:
    house = import_graph.module_imports(package(tmp_path, files))
    assert import_graph.across_rooms(house) == [found]


def test_a_circle_of_rooms_without_one_of_modules_is_reported(tmp_path: Path) -> None:
    files = {
        "lab/disks/a.py": "from house.lab.hosts import b",
        "lab/hosts/b.py": "",
        "lab/hosts/c.py": "from house.lab.disks import d",
        "lab/disks/d.py": "",
    }
    imports = import_graph.module_imports(package(tmp_path, files))
    assert import_graph.circles(imports) == []
    assert import_graph.rooms_in_circles(imports) == [["lab.disks", "lab.hosts"]]


def sources() -> Iterator[Path]:
    """Everything that may name a module: code, templates, scripts, workflows of make."""
    yield from (ROOT / name for name in ("Makefile", "pyproject.toml"))
    for folder in ("docs", "kimi_prov", "playbooks", "roles", "tests"):
        for file in (ROOT / folder).rglob("*"):
            outside = file.is_relative_to(ROOT / "tests/data") or "__pycache__" in file.parts
            if file.is_file() and not outside and file.suffix not in {".whl", ".gz", ".svg"}:
                yield file


def test_scripts_and_strings_import_modules_that_exist() -> None:
    known = import_graph.modules()
    missing = []
    for file in sources():
        for module, names, program in IMPORT.findall(file.read_text(errors="replace")):
            text = known[module or program].read_text() if (module or program) in known else None
            for name in re.findall(r"\w+", names) if text is not None else ["(module)"]:
                full = f"{module}.{name}".lstrip(".")
                if text is None or (full not in known and not re.search(rf"\b{name}\b", text)):
                    missing.append(
                        f"{file.relative_to(ROOT)}: kimi_prov.{module or program} {name}"
                    )
    assert missing == []
