"""All tests are collected by one command: two modules of one name would end it before the first."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_each_test_module_has_a_name_of_its_own() -> None:
    names = Counter(file.name for file in TESTS.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
