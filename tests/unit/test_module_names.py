"""All tests are collected by one command, on one path of imports.

Of two modules of one name the first that is found would stand for both, or end the collection.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_each_module_that_tests_import_has_a_name_of_its_own() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shared = project["tool"]["pytest"]["ini_options"]["pythonpath"]
    modules = {file for folder in shared for file in (ROOT / folder).glob("*.py")}
    modules |= set((ROOT / "tests").rglob("test_*.py"))
    names = Counter(file.name for file in modules if file.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
