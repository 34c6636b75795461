"""Which files of an inventory Ansible reads; what else lies in its folder is the operator's own.

A folder may hold certificates, secrets, manifests and reports beside hosts and variables: none of
them is read as hosts.

Decides: which files of an inventory are read.
Held by: tests/unit/runner/test_inventory_reading.py,
  tests/component/runner/test_inventory_commands.py.
"""

from __future__ import annotations

import re
from configparser import ConfigParser
from typing import TYPE_CHECKING

from kimi_prov import schemas

if TYPE_CHECKING:
    from pathlib import Path

_VARIABLES = ("group_vars", "host_vars")
_HEAD_BYTES = 1 << 16
_HIDDEN = re.compile(r"^\.|~$")
# Of the folder of one group or host, Ansible reads files with these endings and without one.
_READ = ("", ".yml", ".yaml", ".json")


def list_sources(inventory: Path, config: Path) -> list[Path]:
    """Return the files that hosts are read from: the inventory, or the files right in its folder.

    `config` is the ansible.cfg that names what plain Ansible ignores there; documents of ours and
    keys are ignored by what they hold. Raises OSError for a folder that cannot be listed.
    """
    if not inventory.is_dir():
        return [inventory]
    ignored = _read_ignored(config)
    return sorted(
        file
        for file in inventory.iterdir()
        if not ignored.search(file.name) and file.is_file() and not _is_data(file)
    )


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
    parser = ConfigParser(interpolation=None)
    parser.read(config, encoding="utf-8")
    endings = _read_list(parser, "ignore_extensions")
    patterns = [rf"{re.escape(ending)}$" for ending in endings]
    return re.compile(
        "|".join([_HIDDEN.pattern, *patterns, *_read_list(parser, "ignore_patterns")])
    )


def _read_list(parser: ConfigParser, key: str) -> list[str]:
    words = parser.get("inventory", key, fallback="").split(",")
    return [word.strip() for word in words if word.strip()]
