"""Root's Python on a managed machine imports nothing of the login user's: each call has -I."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import kimi_prov
from kimi_prov.packaging import resources

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = Path(kimi_prov.__file__).parent
ROLES = resources.find_root() / "roles"
# The engine's own command line, which is the unit's and part of the plan's contract.
ENGINE = ("planner/engine", "planner/selection")
# As the service's user, in a folder made for it, with variables made for it.
NOT_ROOTS = {
    ("on_host/engine/command_check.py", "'-c'"),
    ("on_host/bench/environment.py", "layout.ZIPAPP"),
    # In a job of the user's own, with the tuner's packages in PYTHONPATH.
    ("on_host/cluster/tune.py", "'-s'"),
}
_PYTHON = re.compile(r"python|sys\.executable", re.IGNORECASE)
_ARGUMENT = re.compile(r"""(?<!python=)/bin/python3?['"]?(?: |, )\s*(?P<next>\S+)""")


def calls() -> Iterator[tuple[str, str]]:
    """Each Python and what follows it, in what is written as a command line in our code."""
    for folder in ("ansible", "on_host", "planner"):
        for path in sorted((SOURCES / folder).rglob("*.py")):
            name = str(path.relative_to(SOURCES))
            if name.startswith(ENGINE):
                continue
            text = path.read_text(encoding="utf-8")
            if not _PYTHON.search(text):
                continue
            for node in ast.walk(ast.parse(text)):
                words: list[ast.expr] = []
                if isinstance(node, (ast.List, ast.Tuple)):
                    words = node.elts
                elif isinstance(node, ast.Call):
                    words = node.args
                texts = [ast.unparse(word) for word in words]
                for first, second in itertools.pairwise(texts):
                    if _runs(first, second) and (name, second) not in NOT_ROOTS:
                        yield f"{name}:{node.lineno}", second


def _runs(first: str, second: str) -> bool:
    """Whether these are an interpreter and the first word for it."""
    word = second.strip("'\"")
    looks = word.startswith("-") or "zipapp" in word.lower()
    return bool(_PYTHON.search(first)) and not first.startswith("*") and looks


def test_the_codes_own_calls_are_isolated() -> None:
    found = list(calls())
    assert len(found) > 5
    assert [where for where, second in found if second != "'-I'"] == []


def test_the_roles_calls_are_isolated() -> None:
    found = []
    for path in sorted([*ROLES.rglob("*.yml"), *ROLES.rglob("*.j2")]):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for match in _ARGUMENT.finditer(line):
                where = f"{path.relative_to(ROLES)}:{number}"
                found.append((where, match["next"].strip("'\",")))
    assert len(found) > 5
    assert [where for where, word in found if word != "-I"] == []
