"""Commands whose playbook returns one document per host: `verify`, `status`, `drift`, ..."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kimi_prov.commands.common import playbook_run
from kimi_prov.errors import ExitCode
from kimi_prov.runner.pasteable import fill_document
from kimi_prov.show.output import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.runner.failure_reasons import Failure
    from kimi_prov.runner.run import FinishedRun
    from kimi_prov.show.output import Output

    # A host's part of a report; each command has a type of its own for it.
    Entry = dict[str, Any]


def collect(
    command: str,
    path: Path,
    options: PlaybookOptions,
    variables: Mapping[str, Any] | None = None,
) -> FinishedRun:
    """Run the command's playbook; each host's document is in the outcome.

    `variables` override the inventory.
    """
    inventory, request = playbook_run.prepare(command, command, path, options, variables)
    return playbook_run.run(request, inventory)


def make_unreached(reason: str) -> Entry:
    """Return the entry of a host without a document."""
    return {"ok": False, "detail": reason}


def add_failed(
    hosts: dict[str, Any],
    failures: Iterable[Failure],
    make: Callable[[str], Entry] = make_unreached,
) -> None:
    """Add an entry for each host that failed without a document; `make` makes it of the reason."""
    for failure in failures:
        if failure.host:
            hosts.setdefault(failure.host, make(failure.cause))


def publish(
    command: str,
    finished: FinishedRun,
    output: Output,
    text: Callable[[Any], str],
    unreached: Callable[[str], Entry] = make_unreached,
    also: Callable[[Any], None] = lambda _: None,
) -> ExitCode:
    """Write the hosts' documents as one; exit 1 where one of them is not `ok`.

    `text` writes the document as text, `unreached` makes the entry of a host without a document
    from the reason, `also` writes the document in another form first.
    """
    outcome = finished.outcome
    hosts = dict(outcome.documents)
    add_failed(hosts, outcome.failures, unreached)
    for host, why in outcome.left.items():
        hosts.setdefault(host, unreached(why))
    ok = bool(hosts) and all(found.get("ok") for found in hosts.values())
    if hosts:
        document = {"schema": f"kimi-prov/{command}/v1", "ok": ok, "hosts": hosts}
        if any("complete" in found for found in hosts.values()):
            document["complete"] = all(found.get("complete") for found in hosts.values())
        also(document)
        output.write(document, lambda: text(fill_document(document, finished.inventory)))
        if output.file is not None:
            bad_hosts = [host for host, answer in hosts.items() if not answer.get("ok")]
            verdict = f"not ok: {', '.join(bad_hosts)}" if bad_hosts else "ok"
            say(f"{output.file}: {command} of {', '.join(hosts)}; {verdict}")
    # The report's own text about a host is not repeated; only its failure is reported.
    failures = [failure for failure in outcome.failures if failure.host not in outcome.documents]
    finished = replace(finished, outcome=replace(outcome, failures=failures))
    # An unreached host has an exit code of its own, unless all hosts had to be checked.
    bad = any(not found.get("ok") for found in outcome.documents.values())
    bad = bad or any(found.get("complete") is False for found in hosts.values())
    return playbook_run.conclude(finished, *([ExitCode.FAILED] if bad else []))
