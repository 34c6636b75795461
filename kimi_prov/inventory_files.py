"""Which files of an inventory Ansible reads; what else lies in its folder is the operator's own.

A folder may hold certificates, secrets, manifests and reports beside hosts and variables: none of
them is read as hosts. No file of a folder is run: Ansible's reader of programs, `script`, is for a
program that is named as the inventory itself. A folder that `render` made is no inventory.

Decides: which files of an inventory are read, and which may run.
Held by: tests/unit/runner/test_inventory_reading.py,
  tests/component/runner/test_inventory_commands.py,
  tests/component/commands/test_folders_never_run.py.
"""

from __future__ import annotations

import os
import re
from configparser import ConfigParser
from typing import TYPE_CHECKING

from kimi_prov import schemas
from kimi_prov.contract import clean_text
from kimi_prov.contract.rendered_kinds import (
    CLOUD_INIT,
    KUBERNETES,
    MARKERS,
    RECORD,
    SKYPILOT,
    SLURM,
)
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_VARIABLES = ("group_vars", "host_vars")
_HEAD_BYTES = 1 << 16
_HIDDEN = re.compile(r"^\.|~$")
# Of the folder of one group or host, Ansible reads files with these endings and without one.
_READ = ("", ".yml", ".yaml", ".json")
ENABLED = "ANSIBLE_INVENTORY_ENABLED"
_PROGRAMS = "script"
# What serves from a rendered folder, by its kind.
_FITTING = {
    SKYPILOT: "./launch.sh in it starts the machine",
    CLOUD_INIT: "./launch.sh in it starts the machine",
    KUBERNETES: "kimi-prov apply {folder}  brings it to the cluster",
    SLURM: "kimi-prov submit {folder}  submits its jobs",
}


def list_sources(inventory: Path, config: Path) -> list[Path]:
    """Return the files that hosts are read from: the inventory, or the files right in its folder.

    `config` is the ansible.cfg that names what plain Ansible ignores there; documents of ours and
    keys are ignored by what they hold. Raises OSError for a folder that cannot be listed, UserError
    for one that `render` made, and for a program in a folder.
    """
    if not inventory.is_dir():
        return [inventory]
    _refuse_rendered(inventory)
    ignored = _read_ignored(config)
    sources = sorted(
        file
        for file in inventory.iterdir()
        if not ignored.search(file.name) and file.is_file() and not _is_data(file)
    )
    for file in sources:
        if os.access(file, os.X_OK) and _read_head(file).startswith("#!"):
            raise UserError(
                f"{file}: this is a program, and nothing in an inventory's folder is run",
                fix=f"name the program itself as the inventory, {clean_text.quote_word(file)}, or "
                f"take it out of the folder",
            )
    return sources


def choose_readers(
    inventory: Path, config: Path, environment: Mapping[str, str], *, own: Path
) -> dict[str, str]:
    """Return the variable that tells Ansible which of its plugins read this inventory.

    They are those of the environment, of `config` or of `own`, the ansible.cfg that travels with
    kimi-prov, in this order. The one that runs programs is never among them for a folder; for a
    file it is, unless the site has a list of its own.
    """
    usual = _read_list(_read_config(own), "enable_plugins")
    listed = environment.get(ENABLED)
    enabled = (
        [word.strip() for word in listed.split(",") if word.strip()]
        if listed
        else _read_list(_read_config(config), "enable_plugins")
    ) or usual
    if inventory.is_dir():
        enabled = [name for name in enabled if name.rpartition(".")[2] != _PROGRAMS] or usual
    elif enabled == usual:
        # Before the others: to some of them a program's text is a list of hosts.
        enabled = [_PROGRAMS, *usual]
    return {ENABLED: ",".join(enabled)}


def is_program(inventory: Path) -> bool:
    """Whether Ansible runs what is named as the inventory."""
    return inventory.is_file() and os.access(inventory, os.X_OK)


def list_variable_files(inventory: Path) -> list[Path]:
    """Return the files of variables that belong to an inventory."""
    folder = inventory if inventory.is_dir() else inventory.parent
    return [
        file
        for name in _VARIABLES
        for file in sorted((folder / name).rglob("*"))
        if (file.parent == folder / name or file.suffix in _READ)
        # A pipe too: Ansible would wait for it, so it must be refused.
        and not file.is_dir()
        and not any(map(_HIDDEN.search, file.relative_to(folder).parts))
    ]


def find_schema(file: Path) -> str | None:
    """Return the schema of kimi-prov's that a file names; None where it names none."""
    schema = schemas.named_in(_read_head(file))
    return schema if schema and schema.startswith("kimi-prov/") else None


def _refuse_rendered(folder: Path) -> None:
    """Refuse a folder that `render` made, also without its record: it holds programs."""
    recorded = (find_schema(folder / RECORD) or "").startswith("kimi-prov/render/")
    marker = next((name for name in MARKERS if os.path.lexists(folder / name)), None)
    if marker is None and not recorded:
        return
    kind = MARKERS[marker] if marker else None
    sign = "" if recorded else f" (it has {marker})"
    fits = (
        _FITTING[kind].format(folder=clean_text.quote_word(folder))
        if kind
        else "use the version of kimi-prov that rendered it"
    )
    again = "" if recorded else f"; its {RECORD} is gone: render it again into a new folder"
    raise UserError(
        f"{folder}: this folder was rendered{f' for {kind}' if kind else ''}{sign}, and is no "
        "inventory",
        fix=f"name the inventory. For the folder: {fits}{again}",
    )


def _is_data(file: Path) -> bool:
    return _read_head(file).startswith("-----BEGIN ") or find_schema(file) is not None


def _read_head(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            return stream.read(_HEAD_BYTES)
    except OSError:
        return ""  # who reads it says why it cannot be read


def _read_ignored(config: Path) -> re.Pattern[str]:
    """Read what Ansible ignores in a folder of inventory files: endings, and patterns of names."""
    parser = _read_config(config)
    endings = _read_list(parser, "ignore_extensions")
    patterns = [rf"{re.escape(ending)}$" for ending in endings]
    return re.compile(
        "|".join([_HIDDEN.pattern, *patterns, *_read_list(parser, "ignore_patterns")])
    )


def _read_config(config: Path) -> ConfigParser:
    parser = ConfigParser(inline_comment_prefixes=(";",), interpolation=None)
    parser.read(config, encoding="utf-8")
    return parser


def _read_list(parser: ConfigParser, key: str) -> list[str]:
    words = parser.get("inventory", key, fallback="").split(",")
    return [word.strip() for word in words if word.strip()]
