"""The options of a connection, as Ansible's users know them, for the commands that make one.

The command line imports this at each start: click alone is needed here.
"""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

PATH = click.Path(path_type=Path)
_OPTIONS = {
    "user": click.option("-u", "--user", metavar="NAME", help="Log in as this user."),
    "ask_pass": click.option("-k", "--ask-pass", is_flag=True, help="Ask for the SSH password."),
    "ask_become_pass": click.option(
        "-K", "--ask-become-pass", is_flag=True, help="Ask for the password to become root."
    ),
    "private_key": click.option(
        "--private-key", "--key-file", "private_key", type=PATH, metavar="FILE", help="SSH key."
    ),
    "ssh_common_args": click.option(
        "--ssh-common-args", metavar="ARGS", help="For every ssh and sftp: a jump host, say."
    ),
    "forks": click.option(
        "-f", "--forks", type=click.IntRange(1), metavar="N", help="Hosts at a time."
    ),
    "timeout": click.option(
        "-T", "--timeout", type=click.IntRange(1), metavar="S", help="Seconds to wait for SSH."
    ),
    "ask_vault_pass": click.option(
        "-J",
        "--ask-vault-pass",
        "--ask-vault-password",
        "ask_vault_pass",
        is_flag=True,
        help="Ask for Ansible Vault's password.",
    ),
    "vault_password_files": click.option(
        "--vault-password-file",
        "--vault-pass-file",
        "vault_password_files",
        type=PATH,
        multiple=True,
        metavar="FILE",
        help="File or program that gives it.",
    ),
    "vault_ids": click.option(
        "--vault-id", "vault_ids", multiple=True, metavar="LABEL@FILE", help="The same, by label."
    ),
    "connection_password_file": click.option(
        "--connection-password-file",
        "--conn-pass-file",
        "connection_password_file",
        type=PATH,
        metavar="FILE",
        help="File that holds the SSH password.",
    ),
    "become_password_file": click.option(
        "--become-password-file",
        "--become-pass-file",
        "become_password_file",
        type=PATH,
        metavar="FILE",
        help="File that holds the password to become root.",
    ),
}


_CLUSTER = {
    "context": click.option(
        "--context", metavar="NAME", help="kubectl's context.  [default: the current one]"
    ),
    "namespace": click.option(
        "--namespace",
        metavar="NAME",
        help="Namespace of a folder that names none.  [default: the context's]",
    ),
}


def clustered(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a Kubernetes cluster, as one argument `target`."""

    @wraps(command)
    def packed(*arguments: Any, **given: Any) -> Any:  # noqa: ANN401
        from kimi_prov.operate.kubernetes.kubectl import Target  # noqa: PLC0415  (at its run)

        target = Target(**{name: given.pop(name) for name in _CLUSTER})
        return command(*arguments, target=target, **given)

    for option in reversed(_CLUSTER.values()):
        packed = option(packed)
    return packed


# Of a command whose --key-file is the API key's.
_PRIVATE_KEY = click.option(
    "--private-key", "private_key", type=PATH, metavar="FILE", help="SSH key."
)


def connected(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command Ansible's options of the connection, as one argument `connection`."""
    return _connected(command, _OPTIONS)


def connected_beside_key(command: Callable[..., Any]) -> Callable[..., Any]:
    """Do the same for a command that takes an API key by --key-file."""
    return _connected(command, {**_OPTIONS, "private_key": _PRIVATE_KEY})


def _connected(command: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    @wraps(command)
    def packed(*arguments: Any, **given: Any) -> Any:  # noqa: ANN401
        from kimi_prov.runner.connection import ConnectionOptions  # noqa: PLC0415  (at its run)

        chosen = ConnectionOptions(**{name: given.pop(name) for name in options})
        return command(*arguments, connection=chosen, **given)

    for option in reversed(options.values()):
        packed = option(packed)
    return packed
