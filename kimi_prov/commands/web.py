"""`kimi-prov web backup|restore`: save the web UI's data on this computer, and restore it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kimi_prov.commands.common import file_transfer, host_reports, playbook_run
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import PATH, YES, add_inventory_options
from kimi_prov.errors import UserError
from kimi_prov.operate import encryption
from kimi_prov.show.text import web as web_text

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.errors import ExitCode
    from kimi_prov.show.output import Output


@click.command(cls=Command)
@add_inventory_options(
    click.option(
        "--to",
        type=PATH,
        metavar="FILE",
        help="The archive to write, of one host.  [default: HOST-web-TIME.tar.gz here]",
    ),
)
def backup(path: Path, options: PlaybookOptions, output: Output, to: Path | None) -> ExitCode:
    """Copy the data from each host, while the web UI runs, into a file that only you may read."""
    output.check()
    variables = {"web_work": "backup", "web_file": file_transfer.choose_file(to, "web", ".tar.gz")}
    finished = host_reports.collect("web", path, options, variables)
    return host_reports.publish("web", finished, output, web_text.format_backup)


@click.command(cls=Command)
@add_inventory_options(click.argument("file", type=PATH), YES)
def restore(
    path: Path, file: Path, options: PlaybookOptions, output: Output, *, yes: bool
) -> ExitCode:
    """Replace the data of one host's web UI by a backup of any machine.

    If the web UI does not answer with it, its own data are restored.
    """
    output.check()
    if encryption.find_program(file, description="an archive that `kimi-prov web backup` wrote"):
        raise UserError(
            f"{file}: it is encrypted, and archives of `kimi-prov web backup` are not",
            fix="`kimi-prov restore` takes what `kimi-prov backup` wrote",
        )
    variables = {"web_work": "restore", "web_file": file_transfer.format_variable(file)}
    inventory, request = playbook_run.prepare("web", "web", path, options, variables)
    if not yes:
        command = ["web", "restore", str(path), str(file)]
        # Behind gateways only the first gateway has a web UI.
        names = [*inventory.gateways][:1] or [*inventory.hosts]
        file_transfer.confirm_restore(
            command, "ALL accounts, chats and uploads", names, options.limit
        )
    finished = playbook_run.run(request, inventory)
    return host_reports.publish("web", finished, output, web_text.format_restore)
