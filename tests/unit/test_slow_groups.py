"""Each slow test is in one group, and a change asks for the groups that try what it touches."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import slow_groups
from slow_groups import Group, Part

ROOT = Path(__file__).resolve().parents[2]
GROUPS = slow_groups.read_groups()
MOST_MINUTES = 45


def slow_files() -> set[str]:
    """The files that mark a test as slow."""
    texts = {file: file.read_text() for file in (ROOT / "tests").rglob("test_*.py")}
    return {
        str(file.relative_to(ROOT))
        for file, text in texts.items()
        if "pytest.mark.slow" in text
        and any(
            isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.slow"
            for node in ast.walk(ast.parse(text))
        )
    }


def test_each_file_with_slow_tests_has_one_group_for_all_that_no_part_names() -> None:
    named = [part.file for group in GROUPS for part in group.parts if not part.words]
    assert sorted(named) == sorted(slow_files())
    cut = {part.file for group in GROUPS for part in group.parts if part.words}
    assert cut <= set(named)


def test_words_of_a_part_are_in_its_file() -> None:
    for group in GROUPS:
        for part in group.parts:
            text = (ROOT / part.file).read_text()
            for word in part.words:
                assert word.strip("[") in text, f"{group.name}: {word} is not in {part.file}"


def test_what_asks_for_a_group_is_there_and_no_group_is_too_long() -> None:
    for group in GROUPS:
        for path in group.asked_by:
            assert (ROOT / path).exists(), f"{group.name}: {path}"
        assert group.minutes is None or group.minutes <= MOST_MINUTES, group.name


MADE = [
    Group("rest", "", None, (Part("tests/test_a.py"),), ("kimi_prov/a",)),
    Group("cut", "", None, (Part("tests/test_a.py", ("power",)),), ("kimi_prov/a.py", "roles/a")),
]


@pytest.mark.parametrize(
    ("test", "group"),
    [
        ("tests/test_a.py::test_it[power is cut]", "cut"),
        ("tests/test_a.py::test_it[killed]", "rest"),
        ("tests/test_b.py::test_it[power]", None),
    ],
)
def test_a_test_is_in_the_group_whose_words_its_name_has(test: str, group: str | None) -> None:
    assert slow_groups.find_group(MADE, test) == group
    assert slow_groups.find_group(reversed(MADE), test) == group


@pytest.mark.parametrize(
    ("paths", "asked"),
    [
        (["kimi_prov/a/b.py"], {"rest"}),
        (["kimi_prov/a.py"], {"cut"}),
        (["kimi_prov/ab/c.py", "docs/x.md"], set()),
        (["roles/a/tasks/main.yml"], {"cut"}),
        (["tests/test_a.py"], {"rest", "cut"}),
    ],
)
def test_a_changed_path_asks_for_the_groups_that_name_it_or_its_folder(
    paths: list[str], asked: set[str]
) -> None:
    assert set(slow_groups.find_asked(MADE, paths)) == asked


def test_what_pytest_is_given_for_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert slow_groups.main(["--words", "upgrade-disk"]) == 0
    words = "tests/lab/test_upgrade_harms.py --slow-group=upgrade-disk\n"
    assert capsys.readouterr().out == words
    assert slow_groups.main(["--words", "upgrade-disc"]) == 2
    assert "upgrade-disk" in capsys.readouterr().err
