"""`kimi-prov clean`: remove weights and environments that no kept version needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kimi_prov.commands.common import confirmation, host_reports
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import YES, add_inventory_options
from kimi_prov.contract import clean_text
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.show.output import say
from kimi_prov.show.text import clean as clean_report

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.contract.documents.clean import Clean
    from kimi_prov.errors import ExitCode
    from kimi_prov.runner.run import FinishedRun
    from kimi_prov.show.output import Output


@click.command(cls=Command)
@add_inventory_options(
    click.option("--check", "only_check", is_flag=True, help="Only show what would be freed."),
    YES,
)
def clean(
    path: Path, options: PlaybookOptions, output: Output, *, only_check: bool, yes: bool
) -> ExitCode:
    """Remove weights and environments that no version needs to which `rollback` can go back.

    `kimi_keep_versions` is the number of these versions.
    """
    output.check()
    if not yes and not only_check:
        words = ["clean", str(path), *confirmation.list_limit(options.limit)]
        does = "clean would remove weights and environments"
        confirmation.require_terminal(does, words, check=True)
    if not yes:
        unused = _run(path, options, remove=False)
        size = sum(int(row["bytes"]) for row in unused.outcome.documents.values())
        if only_check or not size:
            return host_reports.publish("clean", unused, output, clean_report.format_text)
        found: Clean = {
            "schema": "kimi-prov/clean/v1",
            "ok": True,
            "hosts": unused.outcome.documents,
        }
        say(clean_text.clean_block(clean_report.format_text(found)))
        question = f"Remove these, {format_bytes(size)} in all?"
        confirmation.confirm(question, "nothing was removed")
    removed = _run(path, options, remove=True)
    return host_reports.publish("clean", removed, output, clean_report.format_text)


def _run(path: Path, options: PlaybookOptions, *, remove: bool) -> FinishedRun:
    return host_reports.collect("clean", path, options, {"clean_remove": remove})
