"""`kimi-prov connect`: what clients of a served model need; also the target of `chat`.

A target is a URL, a rendered folder, or an inventory.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from kimi_prov.clients import snippets
from kimi_prov.commands.access import connect_inventory, served_model
from kimi_prov.commands.access.connect_inventory import ConnectOptions
from kimi_prov.commands.common import rendered
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.option_types import FiniteRange
from kimi_prov.commands.common.options import (
    CLUSTER_OPTIONS,
    EXTRA,
    LIMIT,
    LOGIN,
    PATH,
    add_output_options,
    add_playbook_options_beside_api_key,
    pack_cluster,
    pack_options,
)
from kimi_prov.commands.kubernetes import connect as kubernetes
from kimi_prov.commands.slurm import connect as slurm
from kimi_prov.contract import clean_text
from kimi_prov.contract.rendered_kinds import KUBERNETES
from kimi_prov.errors import UserError
from kimi_prov.render import folder_writer
from kimi_prov.show.output import say, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kimi_prov.commands.access.connect_inventory import Link
    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.errors import ExitCode
    from kimi_prov.operate.kubernetes.kubectl import Target
    from kimi_prov.show.output import Output

PLACE = click.argument("place", metavar="INVENTORY|DIR|URL")
_SERVER = (
    click.option(
        "--ca",
        type=PATH,
        metavar="FILE",
        help="The authority whose certificates clients trust, not the server's own.",
    ),
    click.option(
        "--tunnel", is_flag=True, help="Reach the port through SSH, as the inventory logs in."
    ),
    click.option(
        "--api-key-file",
        "key_file",
        type=PATH,
        metavar="FILE",
        help="File of the API key.  [default: KIMI_API_KEY; for a cluster's service also its "
        "secret]",
    ),
    click.option("--key-file", "old_key_file", type=PATH, metavar="FILE", hidden=True),
    click.option(
        "--port",
        type=click.IntRange(1, 65535),
        metavar="N",
        help="Local port.  [default: 8000, or a free one]",
    ),
    LOGIN,
    click.option(
        "--job",
        type=click.IntRange(min=1),
        metavar="ID",
        help="The server's job.  [default: newest]",
    ),
    *CLUSTER_OPTIONS.values(),
)


@dataclass(frozen=True)
class FolderOptions:
    """The options: `login` and `job` of a SLURM cluster, the others but `port` of Kubernetes."""

    login: str | None
    job: int | None
    target: Target
    key_file: Path | None
    ca: Path | None
    port: int | None
    every: float = 5.0

    def list_given(self) -> list[str]:
        """Return the given options that only a folder has."""
        values = {
            "--login": self.login,
            "--job": self.job,
            "--context": self.target.context,
            "--namespace": self.target.namespace,
        }
        return [name for name, value in values.items() if value is not None]

    def for_kubernetes(self, path: Path, *, snippet: bool) -> kubernetes.Request:
        """Return the request for Kubernetes. Raises UserError for options of SLURM, or a `ca`."""
        for name, value in (("login", self.login), ("job", self.job)):
            if value is not None:
                raise UserError(
                    f"--{name}: belongs to a folder for SLURM, and {path} is none",
                    fix="leave it out",
                )
        if self.ca is not None and not snippet:
            # Without a snippet no client needs it: requests from here pin the certificate.
            raise UserError(
                f"--ca: belongs to a snippet, and no snippet of {path} is requested",
                fix="leave it out, or give connect --for NAME",
            )
        return kubernetes.Request(path, self.target, self.key_file, self.port, self.every, self.ca)

    def for_slurm(self, path: Path) -> slurm.Request:
        """Return the request for SLURM. Raises UserError for options of Kubernetes."""
        rendered.refuse_cluster_options(path, self.target, self.key_file, self.ca)
        number = None if self.job is None else str(self.job)
        return slurm.Request(path, self.login, number, self.port, self.every)


def add_server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that reach a server, as `chosen` and `of_folder`."""

    def pack(values: dict[str, Any]) -> dict[str, Any]:
        values = pack_cluster(values)
        values["key_file"] = _choose_key_file(values.pop("old_key_file"), values["key_file"])
        own = {name: values.pop(name) for name in ("login", "job", "target")}
        both = {n: values.pop(n) for n in ("key_file", "ca", "port", "every") if n in values}
        access = {name: values.pop(name) for name in ("tunnel", "snippet") if name in values}
        return {
            **values,
            "chosen": ConnectOptions(**both, **access),
            "of_folder": FolderOptions(**own, **both),
        }

    return pack_options(command, _SERVER, pack)


def _choose_key_file(old: Path | None, key_file: Path | None) -> Path | None:
    """Return the file of the API key; `old` is the one of --key-file, SSH's key elsewhere."""
    if old is not None:
        say("warning: --key-file is the SSH key from the next release on: give --api-key-file")
    return key_file or old


def _read_snippet(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Check the name of a snippet; `list` prints all names."""
    if value is None or value in snippets.SNIPPETS:
        return value
    if value in snippets.ALIASES:
        return snippets.ALIASES[value]
    if value == "list":
        show(snippets.list_snippets() + "\n")
        context.exit()
    raise click.BadParameter(
        f"{clean_text.clean_line(value)}: take one of {', '.join(snippets.SNIPPETS)}",
        context,
        option,
    )


@click.command(cls=Command)
@PLACE
@LIMIT
@EXTRA
@click.option(
    "--for",
    "snippet",
    metavar="NAME",
    callback=_read_snippet,
    is_eager=True,
    help="Print a snippet to paste: curl, python, claude-code, tools, ...; `list` lists all.",
)
@add_server_options
@click.option(
    "--every",
    type=FiniteRange(0.2, 3600),
    default=15,
    show_default=True,
    metavar="S",
    help="Seconds between two checks of jobs or cluster, or two tries of a tunnel.",
)
@add_output_options
@add_playbook_options_beside_api_key
def connect(
    place: str,
    options: PlaybookOptions,
    output: Output,
    chosen: ConnectOptions,
    of_folder: FolderOptions,
) -> ExitCode:
    """Show what clients of a served model need: base URL, model, certificate; or print a snippet.

    For an INVENTORY it shows each host that serves. A key is tested with a request; --tunnel
    forwards a local port to a host until Ctrl-C. A DIR that `render` made is reached through ssh or
    kubectl until Ctrl-C: the command waits for a server that loads, and follows its successor. A
    URL needs no inventory.
    """
    kind, path = classify(place, options, of_folder, chosen), Path(place)
    if kind == "folder":
        connect_inventory.check_output(chosen, output)
        if folder_writer.find_kind(path) == KUBERNETES:
            request = of_folder.for_kubernetes(path, snippet=chosen.snippet is not None)
            return kubernetes.run(request, output, chosen.snippet)
        return slurm.run(of_folder.for_slurm(path), output, chosen.snippet)
    if kind == "url":
        return connect_inventory.connect_url(place, chosen, output)
    return connect_inventory.run(path, options, chosen, output)


def classify(
    place: str, options: PlaybookOptions, of_folder: FolderOptions, chosen: ConnectOptions
) -> Literal["url", "folder", "inventory"]:
    """Return the kind of a target. Raises UserError for options of another kind."""
    url = served_model.is_url(place)
    if not url and folder_writer.find_kind(Path(place)) is not None:
        names = ["--tunnel"] if chosen.tunnel else []
        names += [f"--{name.replace('_', '-')}" for name in options.list_given()]
        _refuse(names, f"an inventory, and {place} is a rendered folder")
        return "folder"
    _refuse(of_folder.list_given(), f"a rendered folder, and {place} is none")
    if url:
        connect_inventory.check_url(options, chosen)
    return "url" if url else "inventory"


def _refuse(names: list[str], reason: str) -> None:
    if names:
        raise UserError(f"{names[0]}: belongs to {reason}", fix="leave it out")


@contextmanager
def open_folder(path: Path, of_folder: FolderOptions) -> Iterator[Link]:
    """Give the model that a folder's cluster serves, for the time of this context.

    Raises UserError.
    """
    if folder_writer.find_kind(path) == KUBERNETES:
        way = kubernetes.open_link(of_folder.for_kubernetes(path, snippet=False))
    else:
        way = slurm.open_link(of_folder.for_slurm(path))
    with way as link:
        yield link
