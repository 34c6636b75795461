"""`kimi-prov history` and `kimi-prov rollback`: what was applied, and the way back to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.commands.common import host_reports, playbook_run
from kimi_prov.runner import locks
from kimi_prov.show.text import history
from kimi_prov.user_dirs import state_home

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.errors import ExitCode
    from kimi_prov.show.output import Output


def run(path: Path, options: PlaybookOptions, output: Output) -> ExitCode:
    """Report what was applied to every host, oldest first."""
    output.check()
    finished = host_reports.collect("history", path, options)
    return host_reports.publish("history", finished, output, history.text, _unreached)


def rollback(path: Path, number: int | None, options: PlaybookOptions, output: Output) -> ExitCode:
    """Put an entry of the history back, and report the history; `number` None: the last other."""
    output.check()
    variables = {} if number is None else {"rollback_to": number}
    inventory, request = playbook_run.prepare("rollback", "rollback", path, options, variables)
    with locks.held(path, "rollback", state_home()) as descriptor:
        finished = playbook_run.run(request, inventory, (descriptor,))
    outcome = finished.outcome
    hosts = dict(outcome.documents)
    if hosts:
        document = {"schema": "kimi-prov/history/v1", "ok": not outcome.failures, "hosts": hosts}
        output.write(document, lambda: history.last(document))
    return playbook_run.conclude(finished)


def _unreached(why: str) -> dict[str, Any]:
    return {"ok": False, "detail": why}
