"""`kimi-prov web backup|restore`: carry what the page keeps to this computer and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.commands.common import file_transfer, host_reports, playbook_run
from kimi_prov.errors import UserError
from kimi_prov.operate import encryption
from kimi_prov.show.text import web

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.errors import ExitCode
    from kimi_prov.show.output import Output


def backup(path: Path, to: Path | None, options: PlaybookOptions, output: Output) -> ExitCode:
    """Write an archive of each host's page; `to` names it where there is one host.

    Raises UserError where a file of that name is there, or cannot be written.
    """
    output.check()
    variables = {"web_work": "backup", "web_file": file_transfer.new_file(to, "web", ".tar.gz")}
    inventory, request = playbook_run.prepare("web", "web", path, options, variables)
    finished = playbook_run.run(request, inventory)
    return host_reports.publish("web", finished, output, web.backup, file_transfer.unreached)


def restore(
    path: Path, file: Path, options: PlaybookOptions, output: Output, *, confirmed: bool
) -> ExitCode:
    """Put an archive in the place of what one host's page keeps; ask unless `confirmed`.

    Raises UserError where the file is no archive.
    """
    output.check()
    if encryption.program_of(file, wanted="an archive that `kimi-prov web backup` wrote"):
        raise UserError(
            f"{file}: it is encrypted, and no archive of a page alone is",
            fix="`kimi-prov restore` takes what `kimi-prov backup` wrote",
        )
    variables = {"web_work": "restore", "web_file": file_transfer.variable(file)}
    inventory, request = playbook_run.prepare("web", "web", path, options, variables)
    if not confirmed:
        command = ["web", "restore", str(path), str(file)]
        # Behind gateways the first of them has the page of all.
        names = [*inventory.gateways][:1] or [*inventory.hosts]
        file_transfer.confirm(command, "ALL accounts, chats and uploads", names, options.limit)
    finished = playbook_run.run(request, inventory)
    return host_reports.publish("web", finished, output, web.restore, file_transfer.unreached)
