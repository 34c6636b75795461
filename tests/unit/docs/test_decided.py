"""The table of what is decided where, made from lines in docstrings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import decided
import pytest

if TYPE_CHECKING:
    from pathlib import Path

BUDGETS = '''"""The memory budget.

Decides: the memory budget.
Applied by: roles/serve, every role.
Held by: tests/unit/test_gpu.py,
  tests/unit/test_cpu.py.
Decides: the context (its
  limit).
"""
'''
CONTEXT = '"""The context.\n\nDecides: the context.\nHeld by: tests/unit/test_cpu.py.\n"""\n'


@pytest.fixture
def house(tmp_path: Path) -> Path:
    for path, text in {
        "kimi_prov/planner/budgets.py": BUDGETS,
        "kimi_prov/planner/context.py": CONTEXT,
        "kimi_prov/planner/__init__.py": '"""Plans.\n\nDecides: the memory budget (a part).\n"""\n',
        "roles/serve/tasks/main.yml": "",
        "tests/unit/test_gpu.py": "",
        "tests/unit/test_cpu.py": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_files_that_name_one_subject_share_a_row_and_the_one_with_the_tests_is_first(
    house: Path,
) -> None:
    memory, context = decided.rows(house)
    assert memory.subject == "the memory budget"
    assert memory.files == [
        ("kimi_prov/planner/budgets.py", ""),
        ("kimi_prov/planner", "a part"),
    ]
    assert memory.applied == ["roles/serve", "every role"]
    assert memory.held == ["tests/unit/test_gpu.py", "tests/unit/test_cpu.py"]
    assert context.files == [
        ("kimi_prov/planner/context.py", ""),
        ("kimi_prov/planner/budgets.py", "its limit"),
    ]


def test_the_head_of_a_file_that_is_no_python_may_decide_too(house: Path) -> None:
    lock = house / "kimi_prov/catalog/locks/refresh"
    lock.parent.mkdir(parents=True)
    lock.write_text(
        "#!/bin/bash\n# Locks.\n#\n# Decides: the locks.\n# Held by: tests/unit/test_cpu.py.\n: y\n"
    )
    prices = house / "kimi_prov/catalog/prices.yaml"
    prices.write_text("# Decides: the locks (their prices).\nrows: []\n# Decides: nothing.\n")
    locks = decided.rows(house)[0]
    assert locks.files == [
        ("kimi_prov/catalog/locks/refresh", ""),
        ("kimi_prov/catalog/prices.yaml", "their prices"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tests/unit/test_gpu.py", "tests/unit/test_gone.py", r"test_gone\.py does not exist"),
        ("roles/serve", "roles/gone", "roles/gone does not exist"),
        ("Held by: tests/unit/test_gpu.py", "Held by: test_gpu", "test_gpu is no path of a test"),
        (
            "Decides: the context (its",
            "Decides: the contexts (its",
            "no other file decides the rest",
        ),
        ("Decides: the context (its", "Decides: the contexts, its (", "no file says which test"),
    ],
)
def test_a_line_that_names_what_is_not_there_is_refused(
    house: Path, old: str, new: str, said: str
) -> None:
    file = house / "kimi_prov/planner/budgets.py"
    file.write_text(BUDGETS.replace(old, new))
    with pytest.raises(ValueError, match=said) as caught:
        decided.rows(house)
    assert str(caught.value).startswith("kimi_prov/planner/budgets.py: Decides: the ")
