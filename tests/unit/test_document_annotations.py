"""Documents have types: a plan, facts or an answer is never a mapping of anything.

No number is raised; one that fell is lowered.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).resolve().parents[2] / "kimi_prov"
UNTYPED = re.compile(r"\b(?:dict|Mapping)\[str, Any\]")
DOCUMENTS = re.compile(r"(?:\w+_)?(?:plan|facts|answers?)")
GIVING = re.compile(r"_?(?:read|make|build|get|load|collect)_" + DOCUMENTS.pattern)

# How often each folder says that a mapping may hold anything, at most.
CEILINGS = {
    "acceptance": 55,
    "ansible": 229,
    "catalog": 6,
    "clients": 9,
    "commands": 106,
    "contract": 26,
    "facts": 38,
    "lab": 21,
    "monitoring": 12,
    "on_host": 597,
    "operate": 24,
    "packaging": 2,
    "planner": 96,
    "render": 46,
    "runner": 28,
    "schemas": 3,
    "show": 92,
    "sizing": 10,
}


def list_annotations(tree: ast.AST) -> Iterator[tuple[str, ast.expr, int]]:
    """Yield the name, the annotation and the line of parameters, variables and functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation:
            yield node.arg, node.annotation, node.lineno
        elif isinstance(node, ast.AnnAssign):
            target = node.target
            name = target.attr if isinstance(target, ast.Attribute) else ast.unparse(target)
            yield name, node.annotation, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
            yield f"{node.name}()", node.returns, node.lineno


def list_untyped_documents(source: str) -> list[str]:
    return [
        f"{line}: {name}"
        for name, annotation, line in list_annotations(ast.parse(source))
        if (DOCUMENTS.fullmatch(name) or GIVING.fullmatch(name.removesuffix("()")))
        and re.fullmatch(rf"{UNTYPED.pattern}(?: \| None)?", ast.unparse(annotation))
    ]


def test_a_plan_facts_and_an_answer_have_a_type() -> None:
    texts = {file: file.read_text() for file in sorted(PACKAGE.rglob("*.py"))}
    found = {
        file: list_untyped_documents(text) for file, text in texts.items() if UNTYPED.search(text)
    }
    assert {str(file): rows for file, rows in found.items() if rows} == {}


def test_an_untyped_document_is_found() -> None:
    source = """
def read_plan(facts: dict[str, Any], answer: Mapping[str, Any] | None) -> dict[str, Any]:
    plan: dict[str, Any] = {}
    self.machine_facts: dict[str, Any] = {}
    found: dict[str, Any] = {}
def answer(plans: dict[str, Plan]) -> dict[str, Any]: ...
"""
    assert sorted(list_untyped_documents(source)) == [
        "2: answer",
        "2: facts",
        "2: read_plan()",
        "3: plan",
        "4: machine_facts",
    ]


def count_untyped() -> Counter[str]:
    found: Counter[str] = Counter()
    for file in PACKAGE.rglob("*.py"):
        found[file.relative_to(PACKAGE).parts[0]] += len(UNTYPED.findall(file.read_text()))
    return found


def test_no_folder_says_more_often_that_a_mapping_holds_anything() -> None:
    counts = count_untyped()
    assert {name: n for name, n in counts.items() if n > CEILINGS.get(name, 0)} == {}


def test_a_ceiling_falls_with_its_folder() -> None:
    counts = count_untyped()
    assert {name: counts[name] for name, most in CEILINGS.items() if counts[name] < most - 5} == {}
