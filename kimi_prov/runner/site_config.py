"""Merge a site's ansible.cfg with ours: its users, keys and jump hosts; our plugins and roles.

Decides: how Ansible reaches the machines: options, passwords, the `ansible.cfg` of a site
  (`ansible.cfg`).
"""

from __future__ import annotations

import os
import stat
from configparser import ConfigParser, Error
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov import documents
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_BYTES = 1 << 20
# Settings that a site may choose; other settings of our file override the site's.
_SITE_SETTINGS = {
    ("defaults", "forks"),
    ("defaults", "timeout"),
    ("defaults", "host_key_checking"),
    ("defaults", "interpreter_python"),
    ("ssh_connection", "pipelining"),
    ("ssh_connection", "ssh_args"),
    # `inventory_files.choose_readers` takes the one that runs programs out of a site's list.
    ("inventory", "enable_plugins"),
}
# Settings that make Ansible ask for a password, by the kind of password.
_ASKING = (
    ("connection", "defaults", "ask_pass"),
    ("become", "defaults", "become_ask_pass"),
    ("become", "privilege_escalation", "become_ask_pass"),
    ("vault", "defaults", "ask_vault_pass"),
)
# Settings that would change how a run goes or where it is logged: our log masks secrets.
_LEFT_OUT = {
    "strategy",
    "strategy_plugins",
    "stdout_callback",
    "callbacks_enabled",
    "callback_whitelist",
    "log_path",
    "local_tmp",
    "playbook_dir",
    "inventory",
    *(key for _, _, key in _ASKING),
}
# Types of Ansible's settings that are paths, and the separator between several.
_PATHS = {"path": None, "tmppath": None, "pathspec": ":", "pathlist": ","}


@dataclass(frozen=True)
class SiteConfig:
    """Text of the configuration; `asks`: the kinds of passwords to ask for, as in `Connection`."""

    text: str
    asks: frozenset[str] = frozenset()


def find(environment: Mapping[str, str], folder: Path, *, own: Path) -> Path | None:
    """Return the ansible.cfg that Ansible itself would read here; None where it is ours, or none.

    As in Ansible: ANSIBLE_CONFIG, the current folder (unless everybody may write there), the home
    folder, /etc/ansible; a file that this user may not read is skipped. Raises UserError where
    ANSIBLE_CONFIG names no file or an unreadable one, because the user chose that file.
    """
    named = environment.get("ANSIBLE_CONFIG")
    if named:
        file = Path(os.path.expanduser(named))  # noqa: PTH111 - a user without a home has none
        file = file / "ansible.cfg" if os.path.isdir(file) else file  # noqa: PTH112
        if not _is_readable(file):
            raise UserError(
                f"ANSIBLE_CONFIG: there is no file {named} that this user may read",
                fix="unset it, or name a file",
            )
        return None if file.samefile(own) else file.absolute()
    home = Path(environment.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111
    usual = (folder / "ansible.cfg", home / ".ansible.cfg", Path("/etc/ansible/ansible.cfg"))
    for file in usual:
        if not _is_readable(file) or (file.parent == folder and _is_world_writable(folder)):
            continue
        return None if file.samefile(own) else file.absolute()
    return None


def read(site: Path, own: Path) -> SiteConfig:
    """Merge a site's configuration with ours. Raises UserError where it cannot be read."""
    theirs, ours = _parse_config(site), _parse_config(own)
    asks = frozenset(
        kind
        for kind, section, key in _ASKING
        if theirs.has_option(section, key) and _is_yes(theirs, site, section, key)
    )
    paths = _list_path_settings(own)
    merged = ConfigParser(interpolation=None)
    for parser, file in ((theirs, site), (ours, own)):
        for section in parser.sections():
            if not merged.has_section(section):
                merged.add_section(section)
            for key, value in parser.items(section):
                if parser is theirs and key in _LEFT_OUT:
                    continue
                if (section, key) in _SITE_SETTINGS and merged.has_option(section, key):
                    continue
                setting = (section, key)
                here = setting in paths
                merged.set(
                    *setting, _make_absolute(value, file.parent, paths[setting]) if here else value
                )
    text = StringIO()
    merged.write(text)
    return SiteConfig(text.getvalue(), asks)


def _parse_config(file: Path) -> ConfigParser:
    fix = f"edit {file}, or name another:  ANSIBLE_CONFIG=FILE"
    text = documents.read_bytes(file, what="an ansible.cfg", limit=_MAX_BYTES, fix=fix).decode(
        "utf-8", "replace"
    )
    # As Ansible reads it: "; " begins a comment within a line.
    parser = ConfigParser(inline_comment_prefixes=(";",), interpolation=None)
    try:
        parser.read_string(text)
    except Error as error:
        message = " ".join(str(error).replace("<string>", str(file)).split())
        raise UserError(f"{file}: Ansible cannot read this: {message}", fix=fix) from None
    return parser


def _is_yes(parser: ConfigParser, file: Path, section: str, key: str) -> bool:
    try:
        return parser.getboolean(section, key)
    except ValueError:
        raise UserError(
            f"{file}: {key} is {parser.get(section, key)!r}, expected True or False",
            fix=f"edit {file}",
        ) from None


def _list_path_settings(own: Path) -> dict[tuple[str, str], str | None]:
    """Return the settings that are paths, with the separator between several.

    Ansible counts paths from the folder of their file.
    """
    from ansible.config.manager import ConfigManager  # noqa: PLC0415  (a fifth of a second)

    definitions = ConfigManager(str(own)).get_configuration_definitions()
    return {
        (entry["section"], entry["key"]): _PATHS[definition["type"]]
        for definition in definitions.values()
        if definition.get("type") in _PATHS
        for entry in definition.get("ini") or ()
    }


def _make_absolute(value: str, folder: Path, between: str | None) -> str:
    """Make a path, or several, absolute."""
    value = value.replace("{{CWD}}", str(Path.cwd()))
    return (between or "").join(
        part if part.startswith(("/", "~", "$", "{{")) else os.path.normpath(folder / part)
        for part in (part.strip() for part in (value.split(between) if between else [value]))
        if part
    )


def _is_readable(file: Path) -> bool:
    """Whether this user may read the file; False if its folder cannot be entered."""
    return os.path.isfile(file) and os.access(file, os.R_OK)  # noqa: PTH113 - Path.is_file raises


def _is_world_writable(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IWOTH)
