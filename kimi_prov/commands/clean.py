"""`kimi-prov clean`: free what no version needs that can be put back."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from kimi_prov.commands import host_reports, playbook_run
from kimi_prov.console import freed_text
from kimi_prov.console.output import say
from kimi_prov.contract import clean_text
from kimi_prov.contract.sizes import human
from kimi_prov.errors import ExitCode, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.playbook_run import PlaybookOptions
    from kimi_prov.console.output import Output
    from kimi_prov.runner.run import FinishedRun


def run(
    path: Path, options: PlaybookOptions, output: Output, *, confirmed: bool, check: bool
) -> ExitCode:
    """Say what would be freed, ask, and free it; with `check` only say it."""
    output.check()
    if not confirmed and not check and not sys.stdin.isatty():
        words = ["kimi-prov", "clean", str(path)]
        words += ["--limit", options.limit] if options.limit else []
        raise UserError(
            "clean would remove weights and environments, and there is no terminal to ask on",
            fix=f"see what:  {shlex.join([*words, '--check'])}; if that is meant:  "
            f"{shlex.join([*words, '--yes'])}",
        )
    if not confirmed:
        found = _play(path, options, remove=False)
        size = sum(int(row["bytes"]) for row in found.outcome.documents.values())
        if check or not size:
            return _publish(found, output)
        say(clean_text.block(freed_text.text({"hosts": found.outcome.documents})))
        if not click.confirm(f"Remove these, {human(size)} in all?", err=True):
            raise UserError("nothing was removed: the answer was no", fix="answer y, or give --yes")
    return _publish(_play(path, options, remove=True), output)


def _play(path: Path, options: PlaybookOptions, *, remove: bool) -> FinishedRun:
    variables = {"clean_remove": remove}
    inventory, request = playbook_run.prepare("clean", "clean", path, options, variables)
    return playbook_run.run(request, inventory)


def _publish(finished: FinishedRun, output: Output) -> ExitCode:
    return host_reports.publish("clean", finished, output, freed_text.text, _unreached)


def _unreached(why: str) -> dict[str, Any]:
    return {"ok": False, "detail": why}
