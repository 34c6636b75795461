"""`kimi-prov playbooks`: what Ansible alone needs to run the playbooks of this installation.

Decides: `ansible-playbook` without kimi-prov's commands, from a wheel or a checkout.
Held by: tests/component/commands/test_playbooks_alone.py.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click
from ansible.config.manager import ConfigManager

from kimi_prov.commands.common.command import Command
from kimi_prov.errors import UserError
from kimi_prov.packaging import resources
from kimi_prov.runner import site_config
from kimi_prov.show.output import show

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROGRAM = "ansible-playbook"
_REMARK = re.compile(r"[.:] `kimi-prov .*|;.*")


@click.command(cls=Command)
@click.option("--path", is_flag=True, help="Print the folder of the playbooks.")
@click.option("--env", is_flag=True, help="Print lines for a shell: roles and plugins.")
def playbooks(*, path: bool, env: bool) -> None:
    """Say where the playbooks are, for ansible-playbook and for playbooks of your own.

    eval "$(kimi-prov playbooks --env)"
    """
    if path and env:
        raise UserError(
            "--path and --env are two questions",
            fix='eval "$(kimi-prov playbooks --env)"; ls "$(kimi-prov playbooks --path)"',
        )
    root = resources.find_root()
    folder = root / "playbooks"
    if path:
        show(f"{folder}\n")
    elif env:
        show("".join(f"export {name}={quote(value)}\n" for name, value in _list_variables(root)))
    else:
        files = sorted(folder.glob("*.yml"))
        width = max(len(file.name) for file in files)
        rows = "".join(_format_row(file, width) for file in files)
        show(
            f"{folder}\n{rows}\n"
            'With Ansible alone:\n  eval "$(kimi-prov playbooks --env)"\n'
            f'  {_PROGRAM} -i INVENTORY "$(kimi-prov playbooks --path)/site.yml"\n'
        )


def _format_row(file: Path, width: int) -> str:
    indent = " " * (width + 4)
    text = textwrap.fill(_describe(file), 80, initial_indent=indent, subsequent_indent=indent)
    return f"  {file.name:{width}}  {text.lstrip()}\n"


def _describe(file: Path) -> str:
    """Return what a playbook is for: the sentence that it begins with."""
    text = next(line for line in file.read_text(encoding="utf-8").splitlines() if line[:1] == "#")
    return _REMARK.sub("", text.strip("# ")).partition(". ")[0].rstrip(".")


def _list_variables(root: Path) -> Iterator[tuple[str, str]]:
    """Give the variables by which Ansible finds roles and plugins. Raises UserError.

    Without an ansible.cfg of the site's, ours says all. With one it stays in force: our folders
    are added to those that it names.
    """
    programs = Path(sys.executable).parent
    usual = shutil.which(_PROGRAM)
    # The plugins import kimi_prov: an Ansible of another environment does not have it.
    if (programs / _PROGRAM).is_file() and (usual is None or Path(usual).parent != programs):
        yield "PATH", os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    site = site_config.find(os.environ, Path.cwd(), own=resources.find_ansible_config())
    if site is None:
        yield "ANSIBLE_CONFIG", str(resources.find_ansible_config())
        return
    settings = ConfigManager(str(site))
    roles = root / "roles"
    theirs = settings.get_config_value("DEFAULT_ROLES_PATH")
    _check_names(roles, [Path(folder) for folder in theirs])
    yield "ANSIBLE_ROLES_PATH", _add_folder(theirs, roles)
    for kind in ("action", "filter"):
        theirs = settings.get_config_value(f"DEFAULT_{kind.upper()}_PLUGIN_PATH")
        yield (
            f"ANSIBLE_{kind.upper()}_PLUGINS",
            _add_folder(theirs, resources.find_plugins() / kind),
        )


def _add_folder(folders: list[str], ours: Path) -> str:
    return os.pathsep.join([*(folder for folder in folders if folder != str(ours)), str(ours)])


def _check_names(ours: Path, folders: list[Path]) -> None:
    """Refuse roles of the site that have the name of one of ours: Ansible takes one for both."""
    names = {role.name for role in ours.iterdir() if role.is_dir()}
    for folder in folders:
        if folder == ours or not folder.is_dir():
            continue
        for role in sorted(folder.iterdir()):
            if role.name in names and role.is_dir():
                raise UserError(
                    f"{role}: a role of kimi-prov has the same name, and Ansible would take one "
                    "for both",
                    fix="rename it, or run our playbooks apart from yours:  ANSIBLE_CONFIG="
                    f"{quote(str(resources.find_ansible_config()))} {_PROGRAM} -i INVENTORY "
                    '"$(kimi-prov playbooks --path)/site.yml"',
                )
