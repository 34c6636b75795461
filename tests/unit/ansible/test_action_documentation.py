"""Each action says what its arguments are, and tasks give it these and no others."""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kimi_prov.ansible.host_action import HostAction
from kimi_prov.on_host.__main__ import COMMANDS
from kimi_prov.packaging import resources

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = resources.find_root()
ACTIONS = sorted(
    path.stem for path in (ROOT / "kimi_prov/ansible/plugins/action").glob("kimi_*.py")
)


def documentation(action: str) -> dict[str, Any]:
    module = importlib.import_module(f"kimi_prov.ansible.plugins.action.{action}")
    assert issubclass(module.ActionModule, HostAction)
    # Ansible's own tools read the source, and take no text that is put together.
    (text,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DOCUMENTATION"
    )
    return dict(yaml.safe_load(text))


def tasks() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every task that calls an action: where it is, the action, and its arguments."""
    files = [*(ROOT / "playbooks").rglob("*.yml"), *(ROOT / "roles").rglob("tasks/*.yml")]
    for file in sorted(files):
        for task in walk(yaml.safe_load(file.read_text(encoding="utf-8"))):
            for name in ACTIONS:
                if name in task:
                    yield f"{file.name}: {task['name']}", name, task[name] or {}


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for item in value:
            yield from walk(item)
    elif isinstance(value, dict):
        if "name" in value:
            yield value
        for key in ("tasks", "block", "rescue", "always"):
            yield from walk(value.get(key))


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_documents_itself(action: str) -> None:
    text = documentation(action)
    assert text["module"] == action
    assert text["short_description"]
    for name, option in (text.get("options") or {}).items():
        assert option["type"], name
        assert option["description"], name


def test_tasks_give_what_actions_take() -> None:
    seen = set()
    for where, action, arguments in tasks():
        options = documentation(action).get("options") or {}
        assert set(arguments) <= set(options), where
        required = {name for name, option in options.items() if option.get("required")}
        assert required <= set(arguments), where
        seen.add(action)
    assert seen == set(ACTIONS)


def test_tasks_call_subcommands_that_there_are() -> None:
    calls = [row["call"] for _, action, row in tasks() if action == "kimi_host"]
    assert len(calls) > 5
    assert set(calls) <= set(COMMANDS)
