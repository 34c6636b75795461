"""`kimi-prov history` and `kimi-prov rollback`: earlier applies, and the return to one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from kimi_prov.commands.common import confirmation, host_reports, playbook_run
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import YES, add_inventory_options
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode
from kimi_prov.show.output import say
from kimi_prov.show.text import history as history_text

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.contract.documents.history import History
    from kimi_prov.show.output import Output


@click.command(cls=Command)
@add_inventory_options()
def history(path: Path, options: PlaybookOptions, output: Output) -> ExitCode:
    """List applies: time, user and host, what served, how fast, and the result."""
    output.check()
    finished = host_reports.collect("history", path, options)
    return host_reports.publish("history", finished, output, history_text.format_text)


@click.command(cls=Command)
@add_inventory_options(
    click.option(
        "--to",
        "number",
        type=click.IntRange(1),
        metavar="N",
        help="The entry of `history`.  [default: the last that served something else]",
    ),
    YES,
)
def rollback(
    path: Path, number: int | None, options: PlaybookOptions, output: Output, *, yes: bool
) -> ExitCode:
    """Restore the files of an entry of the history, start its units, and verify the model.

    Keys, certificates, packages and the driver stay as they are, and no new plan is made. If the
    entry does not serve, the machine returns by itself to what served, and the command exits 1. The
    inventory is not changed: change it too, or the next `apply` upgrades again.
    """
    output.check()
    variables = {} if number is None else {"rollback_to": number}
    inventory, request = playbook_run.prepare("rollback", "rollback", path, options, variables)
    # A script has nobody to ask, and gave the command on purpose.
    if sys.stdin.isatty() and not yes:
        names = clean_text.clean_line(options.limit or ", ".join(inventory.machines))
        entry = "the last entry that served something else" if number is None else f"entry {number}"
        say(f"The model on {names} is away until the engine of {entry} has started.")
        confirmation.confirm(f"Roll {names} back?", "not rolled back")
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
    code = playbook_run.conclude(finished)
    if code is ExitCode.OK:
        word = clean_text.quote_word(path)
        say(f"the inventory is as it was: edit it too, or  kimi-prov apply {word}  undoes this")
    return code
