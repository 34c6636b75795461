"""How Ansible reaches the machines: the users' options, passwords and ansible.cfg.

A password is asked once, kept in memory, and handed on by files of mode 0600 in a folder that is
removed: never by an argument or the environment.

Decides: how Ansible reaches the machines: options, passwords, the `ansible.cfg` of a site.
Held by: tests/unit/runner/test_connection.py, tests/component/runner/test_connection_runs.py,
  tests/lab/test_login.py.
"""

from __future__ import annotations

import getpass
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.errors import UserError
from kimi_prov.packaging import resources
from kimi_prov.runner import redaction, site_config
from kimi_prov.user_dirs import write_private

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROMPTS = {
    "connection": ("SSH password", "--connection-password-file"),
    "become": ("Password to become root", "--become-password-file"),
    "vault": ("Vault password", "--vault-password-file"),
}
# Variables that let Ansible ask for a password. It cannot ask during a run: we ask before.
ASKS = {
    "connection": "ANSIBLE_ASK_PASS",
    "become": "ANSIBLE_BECOME_ASK_PASS",
    "vault": "ANSIBLE_ASK_VAULT_PASS",
}


@dataclass(frozen=True)
class ConnectionOptions:
    """Options that ansible-playbook has by the same names; `ask_*` ask for a password."""

    user: str | None = None
    private_key: Path | None = None
    ssh_common_args: str | None = None
    forks: int | None = None
    timeout: int | None = None
    ask_pass: bool = False
    ask_become_pass: bool = False
    ask_vault_pass: bool = False
    connection_password_file: Path | None = None
    become_password_file: Path | None = None
    vault_password_files: tuple[Path, ...] = ()
    vault_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Connection:
    """The options, and the passwords and configuration that were read for them.

    `passwords` are by kind: connection, become, vault. `config` is the text of the ansible.cfg to
    use, None for the one that travels with kimi-prov.
    """

    options: ConnectionOptions = field(default_factory=ConnectionOptions)
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)
    config: str | None = None

    def secrets(self) -> set[str]:
        """Return the secrets that no log may hold: the passwords, and those in password files.

        A password file that is executable holds none: Ansible runs it.
        """
        options = self.options
        files = [
            options.connection_password_file,
            options.become_password_file,
            *options.vault_password_files,
            *_list_labelled_files(options),
        ]
        kept = (file for file in files if file is not None and not os.access(file, os.X_OK))
        named = (redaction.find_file_secrets(file) for file in kept)
        return set().union(self.passwords.values(), *named)


@dataclass(frozen=True)
class Access:
    """The configuration and arguments with which one of Ansible's programs connects."""

    config: Path
    playbook_arguments: tuple[str, ...]
    inventory_arguments: tuple[str, ...]


def prepare_connection(options: ConnectionOptions) -> Connection:
    """Read the site's ansible.cfg, and ask for the requested passwords.

    Raises UserError where a file is missing, and where standard input is no terminal.
    """
    options = _resolve_paths(options)
    _check_options(options)
    site = site_config.find(os.environ, Path.cwd(), own=resources.find_ansible_config())
    site_settings = site_config.read(site, resources.find_ansible_config()) if site else None
    answers = {
        "connection": options.ask_pass,
        "become": options.ask_become_pass,
        "vault": options.ask_vault_pass,
    }
    usual = site_settings.asks if site_settings else frozenset()
    # A password file replaces the question that the site's file or the environment requests.
    files = {
        "connection": options.connection_password_file,
        "become": options.become_password_file,
        "vault": options.vault_password_files or options.vault_ids,
    }
    kinds = {
        kind: answers[kind] or (not files[kind] and (kind in usual or _is_set(ASKS[kind])))
        for kind in _PROMPTS
    }
    passwords: dict[str, str] = {}
    for kind, wants in kinds.items():
        if wants:
            # As in Ansible: an empty second password means the first one again.
            same = passwords.get("connection") if kind == "become" else None
            passwords[kind] = _ask_password(kind, same)
    return Connection(options, passwords, site_settings.text if site_settings else None)


def write_access(connection: Connection, folder: Path) -> Access:
    """Write the files that Ansible reads into a private folder; return their arguments."""
    config = resources.find_ansible_config()
    if connection.config is not None:
        config = _write_private(folder / "ansible.cfg", connection.config)
    files = {
        kind: str(_write_private(folder / f"{kind}-password", f"{password}\n"))
        for kind, password in connection.passwords.items()
    }
    options = connection.options
    vault: list[str] = []
    for file in options.vault_password_files:
        vault += ["--vault-password-file", str(file)]
    for identity in options.vault_ids:
        vault += ["--vault-id", identity]
    if "vault" in files:
        vault += ["--vault-password-file", files["vault"]]
    login: list[str] = []
    ssh_password = _choose_file(options.connection_password_file, files, "connection")
    for flag, value in (
        ("--user", options.user),
        ("--private-key", options.private_key),
        ("--ssh-common-args", options.ssh_common_args),
        ("--forks", options.forks),
        ("--timeout", options.timeout),
        ("--connection-password-file", ssh_password),
        ("--become-password-file", _choose_file(options.become_password_file, files, "become")),
    ):
        if value is not None:
            # One word: a value that begins with a dash would count as an option.
            login.append(f"{flag}={value}")
    return Access(config, (*login, *vault), tuple(vault))


def _check_options(options: ConnectionOptions) -> None:
    files = {
        "--private-key": options.private_key,
        "--connection-password-file": options.connection_password_file,
        "--become-password-file": options.become_password_file,
    }
    for flag, file in [
        *files.items(),
        *(("--vault-password-file", file) for file in options.vault_password_files),
        *(("--vault-id", file) for file in _list_labelled_files(options)),
    ]:
        if file is not None and not file.is_file():
            raise UserError(f"{flag}: there is no file {file}", fix=f"name one:  {flag} FILE")
    for is_asked, option, flag in (
        ("--ask-pass", options.ask_pass, "--connection-password-file"),
        ("--ask-become-pass", options.ask_become_pass, "--become-password-file"),
    ):
        if option and files[flag] is not None:
            raise UserError(
                f"{is_asked} and {flag} exclude each other", fix=f"leave out {is_asked}"
            )


def _ask_password(kind: str, same: str | None) -> str:
    """Ask for a password; `same` is the meaning of an empty answer, None if there is none."""
    what, flag = _PROMPTS[kind]
    if not sys.stdin.isatty():
        raise UserError(
            f"{what}: it cannot be asked for, standard input is no terminal",
            fix=f"name a file that holds it:  {flag} FILE",
        )
    hint = "" if same is None else " (empty: the SSH password)"
    answer = getpass.getpass(f"{what}{hint}: ") or same
    if not answer:
        raise UserError(f"{what}: it is empty", fix="type it, or leave out the option that asks")
    return answer


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() in {"1", "true", "yes", "on", "y", "t"}


def _choose_file(option: Path | None, passwords: Mapping[str, str], kind: str) -> str | None:
    return str(option) if option is not None else passwords.get(kind)


def _resolve_paths(options: ConnectionOptions) -> ConnectionOptions:
    """Make paths absolute, `~` included, so that they hold in whatever folder Ansible runs.

    Ansible cuts a vault's id at its first @; without one it is a password file.
    """

    def absolute(file: Path | None) -> Path | None:
        return file and _make_absolute(file)

    files, identities = list(options.vault_password_files), []
    for identity in options.vault_ids:
        label, at, named = identity.partition("@")
        file = named if at else label
        if file in {"prompt", "prompt_ask_vault_pass"}:
            raise UserError(
                f"--vault-id {identity}: nothing is asked in the middle of a run",
                fix="name a file: --vault-id LABEL@FILE, or let it be asked: --ask-vault-pass",
            )
        if at:
            identities.append(f"{label}@{_make_absolute(Path(file))}")
        else:
            files.append(Path(file))
    return replace(
        options,
        private_key=absolute(options.private_key),
        connection_password_file=absolute(options.connection_password_file),
        become_password_file=absolute(options.become_password_file),
        vault_password_files=tuple(map(_make_absolute, files)),
        vault_ids=tuple(identities),
    )


def _make_absolute(file: Path) -> Path:
    try:
        return file.expanduser().absolute()
    except RuntimeError:  # ~ of an unknown user
        return file.absolute()


def _list_labelled_files(options: ConnectionOptions) -> list[Path]:
    """Give the password files of vaults with labels."""
    return [Path(identity.partition("@")[2]) for identity in options.vault_ids]


def _write_private(file: Path, text: str) -> Path:
    write_private(file, text)
    return file
