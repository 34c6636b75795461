"""Filters of the roles: each calls a function of another module."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.ansible import batches, files, switching
from kimi_prov.catalog import loader
from kimi_prov.contract import protection, unit_files
from kimi_prov.packaging import engine_plugins, lock_files, python_archives
from kimi_prov.planner.software import packages
from kimi_prov.user_dirs import find_cache_home

if TYPE_CHECKING:
    from collections.abc import Callable

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.software import BroughtPython


def find_lock_path(name: str) -> str:
    """Return the path of a lock file on the control machine."""
    return str(loader.load_catalogue().lock_path(name))


def list_lock_wheels(name: str, directory: str | None) -> list[str]:
    """List the wheels that a lock asks for and the control machine has.

    The wheels of `directory`, and the plugin's wheel, which is built here.
    """
    wheels = lock_files.list_pinned_wheels(Path(find_lock_path(name)), directory)
    plugin = engine_plugins.find_plugin(name)
    own = [str(engine_plugins.write(plugin, find_cache_home() / "wheels"))] if plugin else []
    return [*wheels, *own]


def find_python_archive(python: BroughtPython, directory: str) -> str:
    """Find the archive of the plan's interpreter in a directory of the control machine."""
    return str(python_archives.find(Path(directory), python))


def list_sandbox_options(plan: MachinePlan) -> list[str]:
    """List the options of systemd-run for code of the plan's engine."""
    return protection.build_sandbox_options(
        gpus=any(instance["gpus"] for instance in plan["instances"])
    )


class FilterModule:
    """The class that Ansible looks for in a filter plugin."""

    def filters(self) -> dict[str, Callable[..., object]]:
        """Return the filters by the names that templates use."""
        return {
            "differing_files": files.find_differing,
            "units_differ": files.check_units_differ,
            "systemd_quote": unit_files.quote_argument,
            "systemd_assignment": unit_files.quote_assignment,
            "unit_protection": protection.format_unit_lines,
            "engine_sandbox": list_sandbox_options,
            "lock_path": find_lock_path,
            "lock_wheels": list_lock_wheels,
            "python_archive": find_python_archive,
            "kimi_batches": batches.list_batches,
            "render_plan": switching.render_plan,
            "missing_packages": packages.list_missing,
            "installs_packages": packages.is_install_needed,
            "apt_environment": packages.make_environment,
        }
