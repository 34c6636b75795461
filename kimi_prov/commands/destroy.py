"""`kimi-prov destroy`: put the machines back as they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kimi_prov.commands.common import confirmation, playbook_run
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import YES, add_inventory_options
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode
from kimi_prov.show.output import show
from kimi_prov.show.text import run_summary

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.runner.inventory import Inventory


@click.command(cls=Command)
@add_inventory_options(
    YES,
    click.option("--purge-weights", is_flag=True, help="Remove the weights too."),
    click.option("--purge-web", is_flag=True, help="Remove the web UI's chats and accounts too."),
    report=None,
)
def destroy(
    path: Path, options: PlaybookOptions, *, yes: bool, purge_weights: bool, purge_web: bool
) -> ExitCode:
    """Put the machines back as they were.

    The weights stay unless `--purge-weights` is given, and the web UI's accounts and chats unless
    `--purge-web` is given.
    """
    variables = {
        "destroy_confirmed": True,
        "destroy_purge_weights": purge_weights,
        "destroy_purge_web": purge_web,
    }
    inventory, request = playbook_run.prepare("destroy", "destroy", path, options, variables)
    if not yes:
        _confirm(path, inventory, options.limit, purge=purge_weights, purge_web=purge_web)
    finished = playbook_run.run_locked(path, request, inventory)
    code = playbook_run.conclude(finished)
    if code is ExitCode.OK:
        documents = sorted(finished.outcome.documents.items())
        kept = [f"{host} keeps {', '.join(row['kept'])}" for host, row in documents if row["kept"]]
        lines = [run_summary.format_counts(finished.outcome), *map(clean_text.clean_row, kept)]
        show("\n".join(lines) + "\n")
    return code


def _confirm(
    path: Path, inventory: Inventory, limit: str | None, *, purge: bool, purge_web: bool
) -> None:
    hosts = clean_text.clean_line(limit or ", ".join(inventory.machines))
    words = ["destroy", str(path), *confirmation.list_limit(limit)]
    words += ["--purge-weights"] if purge else []
    words += ["--purge-web"] if purge_web else []
    confirmation.require_terminal(f"destroy would remove the service from {hosts}", words)
    also = " and DELETE THE WEIGHTS" if purge else " (the weights stay)"
    also += " and DELETE THE WEB UI'S ACCOUNTS AND CHATS" if purge_web else ""
    confirmation.confirm(f"Remove the service from {hosts}{also}?", "not destroyed")
