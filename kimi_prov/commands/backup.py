"""`kimi-prov backup|restore`: save data that cannot be created again, and restore it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kimi_prov.commands.common import file_transfer, host_reports, playbook_run
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import PATH, YES, add_inventory_options
from kimi_prov.operate import encryption
from kimi_prov.show.output import say
from kimi_prov.show.text import backup as backup_text

if TYPE_CHECKING:
    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.errors import ExitCode
    from kimi_prov.show.output import Output

_IN_CLEAR = (
    "warning: the backup holds secrets in clear (the certificate's private key, hashes of keys, "
    "chats of the web UI)\n"
    "  fix: encrypt it to a key of yours: --recipient age1..., or a gpg fingerprint"
)
_REPLACED = "API keys, certificate, history, and ALL accounts and chats of the web UI"


@click.command(cls=Command)
@add_inventory_options(
    click.option(
        "--to",
        type=PATH,
        metavar="FILE",
        help="The file to write, of one host.  [default: HOST-backup-TIME.tar.gz here]",
    ),
    click.option(
        "--recipient",
        "recipients",
        multiple=True,
        metavar="KEY",
        help="Encrypt it to age1..., an SSH public key, a gpg fingerprint, or a file of such. "
        "May be repeated.",
    ),
)
def backup(
    path: Path,
    options: PlaybookOptions,
    output: Output,
    to: Path | None,
    recipients: tuple[str, ...],
) -> ExitCode:
    """Copy the data of each host that cannot be created again into a file that only you may read.

    The data are the hashes of the API keys, the certificate with its key, the ACME account, the
    history, and the web UI's accounts, chats and uploads. Everything runs on meanwhile.
    """
    output.check()
    chosen = encryption.read_recipients(recipients)
    if chosen:
        encryption.prove_recipients(chosen)
    suffix = f".tar.gz.{chosen.program}" if chosen else ".tar.gz"
    variables: dict[str, Any] = {
        "backup_work": "backup",
        "backup_file": file_transfer.choose_file(to, "backup", suffix),
        "backup_recipients": [_format_recipient(text) for text in recipients],
    }
    inventory, request = playbook_run.prepare("backup", "backup", path, options, variables)
    if not chosen:
        say(_IN_CLEAR)
    finished = playbook_run.run(request, inventory)
    return host_reports.publish("backup", finished, output, backup_text.format_backup)


def _format_recipient(recipient: str) -> str:
    """Return a recipient in a form that another process can read: paths become absolute."""
    return (
        file_transfer.format_variable(Path(recipient)) if Path(recipient).is_file() else recipient
    )


@click.command(cls=Command)
@add_inventory_options(
    click.argument("file", type=PATH),
    click.option(
        "--identity",
        type=PATH,
        metavar="FILE",
        help="The private key of a backup encrypted by age.",
    ),
    YES,
)
def restore(
    path: Path,
    file: Path,
    options: PlaybookOptions,
    output: Output,
    *,
    identity: Path | None,
    yes: bool,
) -> ExitCode:
    """Restore a backup on one host on which `apply` has run: its own, or a new one.

    The content is checked before anything changes. Parts that the plan does not use are left out
    and reported.
    """
    output.check()
    encryption.find_program(file)
    variables = {"backup_work": "restore", "backup_file": file_transfer.format_variable(file)}
    inventory, request = playbook_run.prepare("restore", "backup", path, options, variables)
    request = replace(request, phase_names={"backup": "restore"})
    if not yes:
        command = ["restore", str(path), str(file)]
        command += ["--identity", str(identity)] if identity else []
        file_transfer.confirm_restore(command, _REPLACED, [*inventory.machines], options.limit)
    with encryption.open_archive(file, identity) as source:
        variables |= {"backup_source": file_transfer.format_variable(source)}
        finished = playbook_run.run(replace(request, variables=variables), inventory)
    return host_reports.publish("backup", finished, output, backup_text.format_restore)
