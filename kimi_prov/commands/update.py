"""`kimi-prov update`: install what of the operating system waits, one machine at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kimi_prov.commands.common import file_transfer, host_reports, playbook_run
from kimi_prov.errors import UserError
from kimi_prov.runner import locks
from kimi_prov.show.text import update
from kimi_prov.user_dirs import state_home

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.errors import ExitCode
    from kimi_prov.show.output import Output


def run(
    path: Path,
    options: PlaybookOptions,
    output: Output,
    *,
    reboot_ok: bool,
    defer_restart: bool,
) -> ExitCode:
    """Update the hosts, one after the other in the inventory's order; the first failure ends it.

    Raises UserError where a restart is both allowed and deferred.
    """
    if reboot_ok and defer_restart:
        raise UserError(
            "--reboot-ok and --defer-restart exclude each other", fix="give one of them"
        )
    output.check()
    # What is not given is the inventory's to say.
    variables: dict[str, Any] = {"update_reboot_ok": True} if reboot_ok else {}
    variables |= {"update_defer_restart": True} if defer_restart else {}
    inventory, request = playbook_run.prepare("update", "update", path, options, variables)
    with locks.held(path, "update", state_home()) as descriptor:
        finished = playbook_run.run(request, inventory, (descriptor,))
    # The acceptance suite's document of a host that failed it is not this command's.
    documents = finished.outcome.documents
    own = {host: found for host, found in documents.items() if "installed" in found}
    finished = replace(finished, outcome=replace(finished.outcome, documents=own))
    return host_reports.publish("update", finished, output, update.text, file_transfer.unreached)
