"""`kimi-prov backup|restore`: carry what cannot be made again to this computer and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.commands.common import file_transfer, host_reports, playbook_run
from kimi_prov.operate import encryption
from kimi_prov.show.output import say
from kimi_prov.show.text import backup as backup_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.errors import ExitCode
    from kimi_prov.show.output import Output

_IN_CLEAR = (
    "warning: the backup holds secrets in clear (the certificate's private key, hashes of keys, "
    "chats of the page)\n"
    "  fix: encrypt it to a key of yours: --recipient age1..., or a gpg fingerprint"
)
_REPLACED = "API keys, certificate, history, and ALL accounts and chats of the page"


def backup(
    path: Path,
    to: Path | None,
    recipients: Sequence[str],
    options: PlaybookOptions,
    output: Output,
) -> ExitCode:
    """Write an archive of each host; `to` names it where there is one host.

    Raises UserError where a file of that name is there or cannot be written, and for a recipient
    that nothing can be encrypted to.
    """
    output.check()
    chosen = encryption.recipients(recipients)
    if chosen:
        encryption.prove(chosen)
    suffix = f".tar.gz.{chosen.program}" if chosen else ".tar.gz"
    variables: dict[str, Any] = {
        "backup_work": "backup",
        "backup_file": file_transfer.new_file(to, "backup", suffix),
        "backup_recipients": [_named(text) for text in recipients],
    }
    inventory, request = playbook_run.prepare("backup", "backup", path, options, variables)
    if not chosen:
        say(_IN_CLEAR)
    finished = playbook_run.run(request, inventory)
    return host_reports.publish(
        "backup", finished, output, backup_text.backup, file_transfer.unreached
    )


def _named(recipient: str) -> str:
    """Return a recipient so that another process finds the same."""
    return file_transfer.variable(Path(recipient)) if Path(recipient).is_file() else recipient


def restore(
    path: Path,
    file: Path,
    identity: Path | None,
    options: PlaybookOptions,
    output: Output,
    *,
    confirmed: bool,
) -> ExitCode:
    """Put an archive's content back on one host; ask unless `confirmed`.

    Raises UserError where the file is no backup, and where it cannot be decrypted.
    """
    output.check()
    encryption.program_of(file)
    variables = {"backup_work": "restore", "backup_file": file_transfer.variable(file)}
    inventory, request = playbook_run.prepare("backup", "backup", path, options, variables)
    if not confirmed:
        command = ["restore", str(path), str(file)]
        command += ["--identity", str(identity)] if identity else []
        file_transfer.confirm(command, _REPLACED, [*inventory.machines], options.limit)
    with encryption.opened(file, identity) as source:
        wanted = {**variables, "backup_source": file_transfer.variable(source)}
        finished = playbook_run.run(replace(request, variables=wanted), inventory)
    return host_reports.publish(
        "backup", finished, output, backup_text.restore, file_transfer.unreached
    )
