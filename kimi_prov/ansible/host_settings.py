"""Reads the settings of a task's host from the variables that Ansible has of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible import context
from ansible.errors import AnsibleError, AnsibleUndefinedVariable

from kimi_prov.ansible import gateway_hosts
from kimi_prov.errors import UserError
from kimi_prov.planner.settings import parsing
from kimi_prov.planner.settings.definitions import INTERNAL, LENGTH_VARIABLES
from kimi_prov.planner.settings.locate import make_locator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kimi_prov.ansible.host_action import HostAction


def make_host_locator(action: HostAction) -> Callable[[str], str | None]:
    """Return the function that says where a variable of this run is set, as FILE:LINE."""
    return make_locator(_list_sources(action.variables), extra=_list_extra_names())


def read_settings(action: HostAction, locate: Callable[[str], str | None]) -> parsing.Settings:
    """Check the variables of the action's host, with their templates filled in."""
    values, variables = {}, action.variables
    if gateway_hosts.is_gateway(variables):
        variables = {**variables, **gateway_hosts.collect_host_settings(variables)}
    names = [n for n in variables if str(n).startswith("kimi_") and n not in INTERNAL]
    for name in [*names, *LENGTH_VARIABLES, "ansible_host"]:
        if name in variables:
            values[str(name)] = _fill_in(action, name, variables[name], locate)
    folder = variables.get("inventory_dir")
    return parsing.parse_settings(
        values,
        host=action.host,
        base=Path(str(folder)) if folder else None,
        locate=locate,
    )


def _fill_in(
    action: HostAction,
    name: str,
    value: Any,  # noqa: ANN401
    locate: Callable[[str], str | None],
) -> Any:  # noqa: ANN401
    """Fill in the templates in a variable of any type."""
    try:
        return action._templar.template(value)
    except AnsibleError as error:
        undefined = isinstance(error, AnsibleUndefinedVariable)
        raise UserError(
            f"{locate(name) or 'the inventory'}: {name}: {str(error).splitlines()[0]}",
            fix="define the variable that it refers to"
            if undefined
            else f"correct the template in the value of {name}",
        ) from error


def _list_extra_variables() -> list[str]:
    return [str(text) for text in context.CLIARGS.get("extra_vars") or ()]


def _list_extra_names() -> list[str]:
    """Return the names that -e sets on the command line itself."""
    texts = [text for text in _list_extra_variables() if not text.startswith("@")]
    return [name for text in texts for name in re.findall(r"\bkimi_\w+", text)]


def _list_sources(variables: Mapping[str, Any]) -> list[str]:
    """Return the inventories and files of extra variables that the command line names."""
    files = [text[1:] for text in _list_extra_variables() if text.startswith("@")]
    return [*files, *(str(source) for source in variables.get("ansible_inventory_sources") or ())]
