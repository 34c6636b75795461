"""`kimi-prov clean`: free what no version needs that can be put back."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from kimi_prov.commands.common import host_reports, playbook_run
from kimi_prov.contract import clean_text
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.show.output import say
from kimi_prov.show.text import clean

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.runner.run import FinishedRun
    from kimi_prov.show.output import Output


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
        say(clean_text.clean_block(clean.text({"hosts": found.outcome.documents})))
        if not click.confirm(f"Remove these, {format_bytes(size)} in all?", err=True):
            raise UserError("nothing was removed: the answer was no", fix="answer y, or give --yes")
    return _publish(_play(path, options, remove=True), output)


def _play(path: Path, options: PlaybookOptions, *, remove: bool) -> FinishedRun:
    variables = {"clean_remove": remove}
    inventory, request = playbook_run.prepare("clean", "clean", path, options, variables)
    return playbook_run.run(request, inventory)


def _publish(finished: FinishedRun, output: Output) -> ExitCode:
    return host_reports.publish("clean", finished, output, clean.text, _unreached)


def _unreached(why: str) -> dict[str, Any]:
    return {"ok": False, "detail": why}
