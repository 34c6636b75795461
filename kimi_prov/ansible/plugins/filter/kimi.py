"""Filters of the roles: each calls a function of another module.

Ansible reads this file in every run in which a template has a filter. The planner is imported by
the filters that need it, so that `status` does not wait for it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.user_dirs import find_cache_home

if TYPE_CHECKING:
    from collections.abc import Callable

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.software import BroughtPython

# The functions of other modules, by the names that templates use.
_ELSEWHERE = {
    "differing_files": "kimi_prov.ansible.files:find_differing",
    "units_differ": "kimi_prov.ansible.files:check_units_differ",
    "systemd_quote": "kimi_prov.contract.unit_files:quote_argument",
    "systemd_assignment": "kimi_prov.contract.unit_files:quote_assignment",
    "unit_protection": "kimi_prov.contract.protection:format_unit_lines",
    "kimi_batches": "kimi_prov.ansible.batches:list_batches",
    "render_plan": "kimi_prov.ansible.switching:render_plan",
    "missing_packages": "kimi_prov.planner.software.packages:list_missing",
    "installs_packages": "kimi_prov.planner.software.packages:is_install_needed",
    "apt_environment": "kimi_prov.planner.software.packages:make_environment",
}


def find_lock_path(name: str) -> str:
    """Return the path of a lock file on the control machine."""
    from kimi_prov.catalog import loader  # noqa: PLC0415

    return str(loader.load_catalogue().lock_path(name))


def list_lock_wheels(name: str, directory: str | None) -> list[str]:
    """List the wheels that a lock asks for and the control machine has.

    The wheels of `directory`, and the plugin's wheel, which is built here.
    """
    from kimi_prov.packaging import engine_plugins, lock_files  # noqa: PLC0415

    wheels = lock_files.list_pinned_wheels(Path(find_lock_path(name)), directory)
    plugin = engine_plugins.find_plugin(name)
    own = [str(engine_plugins.write(plugin, find_cache_home() / "wheels"))] if plugin else []
    return [*wheels, *own]


def find_python_archive(python: BroughtPython, directory: str) -> str:
    """Find the archive of the plan's interpreter in a directory of the control machine."""
    from kimi_prov.packaging import python_archives  # noqa: PLC0415

    return str(python_archives.find(Path(directory), python))


def list_sandbox_options(plan: MachinePlan) -> list[str]:
    """List the options of systemd-run for code of the plan's engine."""
    from kimi_prov.contract import protection  # noqa: PLC0415

    return protection.build_sandbox_options(
        gpus=any(instance["gpus"] for instance in plan["instances"])
    )


def _make_filter(source: str) -> Callable[..., object]:
    """Return a function that imports another, `MODULE:NAME`, when it is called first."""
    module, _, name = source.partition(":")

    def call(*values: object, **options: object) -> object:
        function: Callable[..., object] = getattr(importlib.import_module(module), name)
        return function(*values, **options)

    return call


class FilterModule:
    """The class that Ansible looks for in a filter plugin."""

    def filters(self) -> dict[str, Callable[..., object]]:
        """Return the filters by the names that templates use."""
        own: dict[str, Callable[..., object]] = {
            "engine_sandbox": list_sandbox_options,
            "lock_path": find_lock_path,
            "lock_wheels": list_lock_wheels,
            "python_archive": find_python_archive,
        }
        return own | {name: _make_filter(source) for name, source in _ELSEWHERE.items()}
