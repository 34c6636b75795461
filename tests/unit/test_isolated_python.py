"""Root's Python on a managed machine imports nothing of the login user's: each call has -I."""

from __future__ import annotations

import ast
import itertools
import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import kimi_prov
from kimi_prov.ansible.remote import RemoteError, call
from kimi_prov.ansible.send import call_sent
from kimi_prov.packaging import resources
from kimi_prov.packaging.zipapp import build_zipapp

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = Path(kimi_prov.__file__).parent
ROLES = resources.root() / "roles"
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
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the login user lands, with modules of names that Python imports itself."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in ("json", "venv", "argparse", "huggingface_hub"):
        text = f"open({str(folder / 'imported')!r}, 'w').close()\nraise SystemExit('poisoned')\n"
        (folder / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


class Action:
    """What runs a command on the machine, of an action plugin: a shell in that directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._connection = SimpleNamespace(_play_context=SimpleNamespace(no_log=False))

    def _low_level_execute_command(
        self, command: str, in_data: bytes | None = None
    ) -> dict[str, Any]:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self._folder,
            input=in_data or b"",
            capture_output=True,
            check=False,
        )
        return {
            "rc": done.returncode,
            "stdout": done.stdout.decode(),
            "stderr": done.stderr.decode(),
        }


def test_code_that_is_sent_runs_with_the_systems_modules(login: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    told = call_sent(Action(login), "manifest", str(weights))  # type: ignore[arg-type]
    assert [row["path"] for row in told["files"]] == ["config.json"]
    assert not (login / "imported").exists()


def test_code_on_the_machine_runs_with_the_systems_modules(login: Path, tmp_path: Path) -> None:
    zipapp = str(build_zipapp(tmp_path / "kimi-target.pyz"))
    with pytest.raises(RemoteError, match="usage: driver"):
        call(Action(login), "driver", "nothing", zipapp=zipapp)  # type: ignore[arg-type]
    assert not (login / "imported").exists()


@pytest.mark.parametrize("file", ["weights/tasks/hub_client.yml", "engine/tasks/uv.yml"])
def test_an_environment_is_made_with_the_systems_modules(
    login: Path, tmp_path: Path, file: str
) -> None:
    tasks: list[Any] = [*yaml.safe_load((ROLES / file).read_text(encoding="utf-8"))]
    for task in tasks:
        tasks += task.get("block", [])
    lines = [task.get("ansible.builtin.command", {}).get("argv", []) for task in tasks]
    [line] = [words for words in lines if "venv" in words and "/usr/bin/python3" in words]
    made = tmp_path / "made"
    command = [*line[:-1], "--without-pip", str(made)]
    subprocess.run(command, cwd=login, env=dict(os.environ), check=True)
    assert (made / "bin" / "python").exists()
    assert not (login / "imported").exists()
