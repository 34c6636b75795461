"""The options of the roles, as their argument specifications declare them.

Ansible would check each role's in a task of its own. Checked together before anything changes, an
option that is wrong is told before the first role has run, and costs no task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from kimi_prov.errors import UserError
from kimi_prov.packaging import resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


def given(names: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Return the options of roles that are among `names`, each with its specification."""
    words = {str(name) for name in names}
    found: dict[str, Mapping[str, Any]] = {}
    for folder in sorted((resources.root() / "roles").iterdir()):
        named = {word for word in words if word.startswith(f"{folder.name}_")}
        if named:
            declared = _declared(folder)
            found |= {name: declared[name] for name in sorted(named & declared.keys())}
    return found


def check(
    values: Mapping[str, Any],
    options: Mapping[str, Mapping[str, Any]],
    locate: Callable[[str], str | None],
) -> None:
    """Raise UserError, with file and line, for a value that its specification does not allow."""
    for name, value in values.items():
        errors = ArgumentSpecValidator({name: options[name]}).validate({name: value}).error_messages
        if errors:
            raise UserError(
                f"{locate(name) or name}: {errors[0]}", fix=f"correct {name} in the inventory"
            )


def _declared(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Every entry point's options of one role."""
    path = folder / "meta" / "argument_specs.yml"
    if not path.is_file():
        return {}
    specs = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
    return {name: spec for entry in specs.values() for name, spec in entry["options"].items()}
