"""`kimi-prov lab up|down|list|ssh`: stand-in machines for an inventory's lab hosts."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, NoReturn

import click

from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import INVENTORY, PATH, add_output_options
from kimi_prov.lab import operations
from kimi_prov.lab.shell import make_tool_environment

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.show.output import Output


@click.command(cls=Command)
@INVENTORY
def up(path: Path) -> None:
    """Start the inventory's lab hosts; running ones stay as they are."""
    operations.start_lab(path)


@click.command(cls=Command)
@INVENTORY
def down(path: Path) -> None:
    """Remove the inventory's lab, with everything that it created."""
    operations.remove_lab(path)


@click.command("list", cls=Command)
@click.argument("path", type=PATH, metavar="[INVENTORY]", required=False)
@add_output_options
def list_hosts(path: Path | None, output: Output) -> None:
    """List the inventory's lab hosts, their addresses, and whether they run.

    Without INVENTORY it lists the hosts of every lab that was brought up here.
    """
    output.check()
    line = "{name:<16} {kind:<7} {state:<7} {address}:{port}  {image}"
    if path is None:
        rows = [{**asdict(host), "inventory": str(at)} for at, host in operations.list_all_hosts()]
        line += "  {inventory}"
    else:
        rows = [asdict(host) for host in operations.list_hosts(path)]
    text = "\n".join(line.format(**row) for row in rows)
    output.write({"hosts": rows}, lambda: text or "no lab is up; kimi-prov lab up INVENTORY")


@click.command(cls=Command, context_settings={"ignore_unknown_options": True})
@INVENTORY
@click.argument("host")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def ssh(path: Path, host: str, command: tuple[str, ...]) -> NoReturn:
    """Open a session on a lab host, or run COMMAND there."""
    asking = operations.make_ssh_command(path, host, command)
    words = [word for word in asking if word != "BatchMode=yes"]
    words.remove("-o")
    os.execvpe(words[0], words, make_tool_environment())  # noqa: S606 - a list, no shell
