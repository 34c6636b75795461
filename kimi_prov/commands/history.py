"""`kimi-prov history` and `kimi-prov rollback`: what was applied, and the way back to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kimi_prov.commands.common import host_reports, playbook_run
from kimi_prov.commands.common.options import add_inventory_options
from kimi_prov.show.text import history as history_text

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.contract.documents.history import History
    from kimi_prov.errors import ExitCode
    from kimi_prov.show.output import Output


@click.command()
@add_inventory_options()
def history(path: Path, options: PlaybookOptions, output: Output) -> ExitCode:
    """Say what was applied when, by whom and from where, what served, how fast, how it ended."""
    output.check()
    finished = host_reports.collect("history", path, options)
    return host_reports.publish("history", finished, output, history_text.format_text)


@click.command()
@add_inventory_options(
    click.option(
        "--to",
        "number",
        type=click.IntRange(1),
        metavar="N",
        help="The entry of `history`.  [default: the last that served something else]",
    ),
)
def rollback(path: Path, number: int | None, options: PlaybookOptions, output: Output) -> ExitCode:
    """Put back the files of an entry of the history, start what they say, and verify it.

    Keys, certificates, packages and the driver stay as they are, and nothing is planned anew. Where
    it does not serve, the machine goes back by itself to what served, and the command exits 1. The
    inventory still says otherwise: change it too, or the next `apply` upgrades again.
    """
    output.check()
    variables = {} if number is None else {"rollback_to": number}
    inventory, request = playbook_run.prepare("rollback", "rollback", path, options, variables)
    finished = playbook_run.run_locked(path, request, inventory)
    outcome = finished.outcome
    hosts = dict(outcome.documents)
    if hosts:
        document: History = {
            "schema": "kimi-prov/history/v1",
            "ok": not outcome.failures,
            "hosts": hosts,
        }
        output.write(document, lambda: history_text.format_newest(document))
    return playbook_run.conclude(finished)
