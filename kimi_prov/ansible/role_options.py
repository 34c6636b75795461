"""The options of the roles, as their argument specifications declare them.

Ansible checks the options of each role in a task of its own, and ignores a name that no role has.
Here all options are checked together before anything changes, so a wrong option is reported before
the first role runs, and the check costs no task.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from kimi_prov.errors import UserError
from kimi_prov.packaging import resources, role_specs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kimi_prov.packaging.role_specs import Spec


# An inventory may hold the site's own names that begin like a role's options (proxy_env,
# update_window, reboot_timeout): only a name with one or two other letters counts as misspelt.
_ALIKE = 0.9


def find_options(names: Iterable[str]) -> dict[str, Spec]:
    """Return the options of roles that are among `names`, each with its specification."""
    return {
        name: declared[name]
        for _, named, declared in role_specs.iterate_roles(names)
        for name in sorted(named & declared.keys())
    }


def check_names(names: Iterable[str], host: str, locate: Callable[[str], str | None]) -> None:
    """Raise UserError, with file and line, for a misspelt option."""
    for prefix, named, declared in role_specs.iterate_roles(names):
        # Compare without the common prefix, which would make all names similar.
        tails = [name.removeprefix(prefix) for name in declared if name.startswith(prefix)]
        for name in sorted(named - declared.keys()):
            for near in difflib.get_close_matches(name.removeprefix(prefix), tails, 1, _ALIKE):
                raise UserError(
                    f"{locate(name) or f'host {host}'}: unknown variable {name}; did you mean "
                    f"{prefix}{near}?",
                    fix=f"rename it to {prefix}{near}, or remove it; "
                    f"{resources.find_page('reference/role-options.md')} lists all options of "
                    "roles",
                )


def check_values(
    values: Mapping[str, Any],
    options: Mapping[str, Spec],
    locate: Callable[[str], str | None],
) -> None:
    """Raise UserError, with file and line, for a value that its specification does not allow."""
    for name, value in values.items():
        errors = ArgumentSpecValidator({name: options[name]}).validate({name: value}).error_messages
        if errors:
            raise UserError(
                f"{locate(name) or name}: {errors[0]}", fix=f"correct {name} in the inventory"
            )
