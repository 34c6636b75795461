"""Options of several commands, and the arguments that they become.

Only defaults and types are needed here; the code behind a command is imported when it runs.
"""

from __future__ import annotations

import os
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kimi_prov.commands.common.command import ConnectionOption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    # A decorator that gives a command one option or several.
    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

# What Linux takes: bytes of one name, and of a whole path with its end.
_MAX_NAME_BYTES, _MAX_PATH_BYTES = 255, 4095


class _LocalPath(click.Path):
    """A path of this computer that its system can look up; a longer one is refused at once."""

    def convert(
        self,
        value: Any,  # noqa: ANN401
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401  (click's own types)
        encoded = os.fsencode(value)
        if b"\0" in encoded:
            self.fail("a path holds no null character; name a file without it.", param, ctx)
        longest = max(map(len, encoded.split(b"/")))
        if longest > _MAX_NAME_BYTES or len(encoded) > _MAX_PATH_BYTES:
            self.fail(
                f"{encoded[:40].decode(errors='replace')}...: a name has at most {_MAX_NAME_BYTES} "
                f"bytes and a path {_MAX_PATH_BYTES}; name a shorter one.",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


PATH = _LocalPath(path_type=Path)
INVENTORY = click.argument("path", type=PATH, metavar="INVENTORY")
# An inventory, or a rendered folder.
INVENTORY_OR_FOLDER = click.argument("path", type=PATH, metavar="INVENTORY|DIR")
LIMIT = click.option("--limit", metavar="PATTERN", help="Only these hosts or groups.")
EXTRA = click.option(
    "-e", "--extra-vars", "extra", multiple=True, metavar="@FILE", help="Variables from a file."
)
OUTPUT = click.option(
    "--output", type=PATH, metavar="FILE", help="Write the report there, not to standard output."
)
BUNDLE = click.option(
    "--bundle",
    type=PATH,
    metavar="DIR",
    help="Install from this offline bundle.  [default: kimi_bundle]",
)
YES = click.option("--yes", is_flag=True, help="Do not ask.")
LOGIN = click.option(
    "--login",
    metavar="USER@HOST",
    help="The cluster's login node; '' for this machine.  [default: KIMI_LOGIN in cluster.env]",
)
SUITES = click.Choice(["basic", "full"])


def _set_catalog(_context: click.Context, _option: click.Parameter, value: Path | None) -> None:
    """Pass the site's rows on in the environment, which Ansible's processes inherit."""
    if value is not None:
        os.environ["KIMI_PROV_CATALOG"] = str(value.absolute())


CATALOG = click.option(
    "--catalog",
    type=PATH,
    metavar="DIR",
    callback=_set_catalog,
    expose_value=False,
    is_eager=True,
    help="Your own rows, which override the catalogue's.  [env: KIMI_PROV_CATALOG]",
)
MODEL = click.option("--model", metavar="NAME", help="The model to serve.  [default: kimi-k2.5]")
_connecting = partial(click.option, cls=ConnectionOption)
_CONNECTION = {
    "user": _connecting("-u", "--user", metavar="NAME", help="Log in as this user."),
    "ask_pass": _connecting("-k", "--ask-pass", is_flag=True, help="Ask for the SSH password."),
    "ask_become_pass": _connecting(
        "-K", "--ask-become-pass", is_flag=True, help="Ask for the password to become root."
    ),
    "private_key": _connecting(
        "--private-key", "--key-file", "private_key", type=PATH, metavar="FILE", help="SSH key."
    ),
    "ssh_common_args": _connecting(
        "--ssh-common-args", metavar="ARGS", help="For every ssh and sftp: a jump host, say."
    ),
    "forks": _connecting(
        "-f", "--forks", type=click.IntRange(1), metavar="N", help="Hosts at a time."
    ),
    "timeout": _connecting(
        "-T", "--timeout", type=click.IntRange(1), metavar="S", help="Seconds to wait for SSH."
    ),
    "ask_vault_pass": _connecting(
        "-J",
        "--ask-vault-pass",
        "--ask-vault-password",
        "ask_vault_pass",
        is_flag=True,
        help="Ask for Ansible Vault's password.",
    ),
    "vault_password_files": _connecting(
        "--vault-password-file",
        "--vault-pass-file",
        "vault_password_files",
        type=PATH,
        multiple=True,
        metavar="FILE",
        help="File or program that gives it.",
    ),
    "vault_ids": _connecting(
        "--vault-id", "vault_ids", multiple=True, metavar="LABEL@FILE", help="The same, by label."
    ),
    "connection_password_file": _connecting(
        "--connection-password-file",
        "--conn-pass-file",
        "connection_password_file",
        type=PATH,
        metavar="FILE",
        help="File that holds the SSH password.",
    ),
    "become_password_file": _connecting(
        "--become-password-file",
        "--become-pass-file",
        "become_password_file",
        type=PATH,
        metavar="FILE",
        help="File that holds the password to become root.",
    ),
}
# For a command whose --key-file is the file of the API key until the next release.
_CONNECTION_BESIDE_API_KEY = {
    **_CONNECTION,
    "private_key": _connecting(
        "--private-key", "private_key", type=PATH, metavar="FILE", help="SSH key."
    ),
}
CLUSTER_OPTIONS = {
    "context": click.option(
        "--context", metavar="NAME", help="kubectl's context.  [default: the current one]"
    ),
    "namespace": click.option(
        "--namespace",
        metavar="NAME",
        help="Namespace of a folder that names none.  [default: the context's]",
    ),
}
# A command's options for ansible-playbook, beside those of the connection.
_OF_PLAYBOOK = ("limit", "tags", "skip_tags", "check", "diff", "extra")


def add_options(*options: Decorator) -> Decorator:
    """Give a command several options, listed in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


# Settings of the model on machines that are described, not managed.
add_model_options = add_options(
    click.option("--context", metavar="N|auto", help="Tokens of one conversation."),
    click.option("--concurrency", metavar="N", help="Requests at the same time."),
    click.option(
        "--hosts-per-model",
        metavar="N",
        help="Equal machines that serve the model together.  [default: as a sheet says, else 1]",
    ),
    click.option(
        "--weights-format",
        metavar="auto|FORMAT",
        help="Format of the experts, such as int4 or nvfp4.",
    ),
    click.option("--kv-dtype", metavar="auto|bf16|fp8", help="Number format of the cache."),
)


def pack_options(
    command: Callable[..., Any],
    options: Iterable[Decorator],
    pack: Callable[[dict[str, Any]], dict[str, Any]],
) -> Callable[..., Any]:
    """Give a command options; `pack` turns the values of all options into its arguments."""

    @wraps(command)
    def run(*arguments: Any, **values: Any) -> Any:  # noqa: ANN401
        return command(*arguments, **pack(values))

    return add_options(*options)(run)


def add_report_options(*formats: str, by_suffix: bool = False) -> Decorator:
    """Give a command --format and --output, as one argument `output`.

    `by_suffix`: without --format, the suffix of the file decides.
    """
    choice = click.Choice(list(formats))
    if by_suffix:
        text = "The report's form.  [default: by the suffix of --output, else text]"
        form = click.option("--format", "form", type=choice, help=text)
    else:
        form = click.option("--format", "form", type=choice, default="text", show_default=True)

    def pack(values: dict[str, Any]) -> dict[str, Any]:
        from kimi_prov.show.output import Output, format_of  # noqa: PLC0415  (at its run)

        form, file = values.pop("form"), values.pop("output")
        return {**values, "output": Output(form or format_of(file), file)}

    return lambda command: pack_options(command, (form, OUTPUT), pack)


add_output_options = add_report_options("text", "json")


def add_cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a Kubernetes cluster, as one argument `target`."""
    return pack_options(command, CLUSTER_OPTIONS.values(), pack_cluster)


def pack_cluster(values: dict[str, Any]) -> dict[str, Any]:
    """Return `target` from the values of a cluster's options."""
    from kimi_prov.operate.kubernetes.kubectl import Target  # noqa: PLC0415  (at its run)

    target = Target(**{name: values.pop(name) for name in CLUSTER_OPTIONS})
    return {**values, "target": target}


def add_connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command Ansible's options of the connection, as one argument `connection`."""
    return pack_options(command, _CONNECTION.values(), _pack_connection)


def add_playbook_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command Ansible's options of the connection.

    With its other options for ansible-playbook they become one argument `options`.
    """
    return pack_options(command, _CONNECTION.values(), _pack_playbook)


def add_playbook_options_beside_api_key(command: Callable[..., Any]) -> Callable[..., Any]:
    """Do the same for a command whose --key-file is the API key's until the next release."""
    return pack_options(command, _CONNECTION_BESIDE_API_KEY.values(), _pack_playbook)


def add_inventory_options(
    *own: Decorator, report: Decorator | None = add_output_options
) -> Decorator:
    """Give a command the common options of an inventory's commands, around its `own` options.

    They are the inventory, --limit, the report's options (`report`, None for none) and Ansible's;
    the command gets them as `path`, `output` and `options`.
    """
    reported = () if report is None else (report,)
    return add_options(INVENTORY, LIMIT, *own, *reported, add_playbook_options)


def add_folder_options(*own: Decorator, report: Decorator | None = add_output_options) -> Decorator:
    """Do the same for a command that also takes a folder for a cluster, its `target`."""
    reported = () if report is None else (report,)
    return add_options(
        INVENTORY_OR_FOLDER, LIMIT, *own, *reported, add_cluster_options, add_playbook_options
    )


def _pack_connection(values: dict[str, Any]) -> dict[str, Any]:
    from kimi_prov.runner.connection import ConnectionOptions  # noqa: PLC0415  (at its run)

    login = ConnectionOptions(**{name: values.pop(name) for name in _CONNECTION})
    return {**values, "connection": login}


def _pack_playbook(values: dict[str, Any]) -> dict[str, Any]:
    from kimi_prov.commands.common.playbook_run import PlaybookOptions  # noqa: PLC0415

    values = _pack_connection(values)
    own = {name: values.pop(name) for name in ("connection", *_OF_PLAYBOOK) if name in values}
    return {**values, "options": PlaybookOptions(**own)}
