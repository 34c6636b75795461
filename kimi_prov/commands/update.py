"""`kimi-prov update`: install updates of the operating system, one machine at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from kimi_prov.commands.common import host_reports, playbook_run
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import BUNDLE, CATALOG, EXTRA, add_inventory_options
from kimi_prov.errors import UserError
from kimi_prov.show.text import update as update_text

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.errors import ExitCode
    from kimi_prov.show.output import Output


@click.command(cls=Command)
@add_inventory_options(
    click.option(
        "--reboot-ok",
        is_flag=True,
        help="Restart machines if necessary.  [default: update_reboot_ok]",
    ),
    click.option("--defer-restart", is_flag=True, help="Leave out updates that need a restart."),
    BUNDLE,
    EXTRA,
    CATALOG,
)
def update(
    path: Path,
    options: PlaybookOptions,
    output: Output,
    *,
    reboot_ok: bool,
    defer_restart: bool,
    bundle: Path | None,
) -> ExitCode:
    """Install security packages, kernel, microcode and the planned driver, a machine at a time.

    Before a restart no more requests are sent to the engines, and those in progress may end;
    afterwards the model has to pass `verify`. Gateways come last, one by one. The first machine
    that fails ends the update: later machines stay as they are. Without consent a machine that
    needs a restart is refused: exit 3.
    """
    if reboot_ok and defer_restart:
        raise UserError(
            "--reboot-ok and --defer-restart exclude each other", fix="give one of them"
        )
    output.check()
    # Without the option the inventory decides.
    variables: dict[str, Any] = {"update_reboot_ok": True} if reboot_ok else {}
    variables |= {"update_defer_restart": True} if defer_restart else {}
    variables |= playbook_run.name_bundle(bundle)
    inventory, request = playbook_run.prepare("update", "update", path, options, variables)
    finished = playbook_run.run_locked(path, request, inventory)
    # Drop the acceptance suite's document of a host that failed it.
    documents = finished.outcome.documents
    own = {host: found for host, found in documents.items() if "installed" in found}
    finished = replace(finished, outcome=replace(finished.outcome, documents=own))
    return host_reports.publish("update", finished, output, update_text.format_text)
