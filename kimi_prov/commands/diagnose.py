"""`kimi-prov diagnose`: a bundle for a bug report, and the known faults that it shows."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import click
from rich.console import Console
from rich.progress import Progress

from kimi_prov import __version__
from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.commands.common import (
    file_transfer,
    gateway_faults,
    group_lifecycle,
    host_reports,
    playbook_run,
)
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import (
    LIMIT,
    PATH,
    add_options,
    add_output_options,
    add_playbook_options,
)
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.troubles.scan import Patterns, Scanner
from kimi_prov.operate.diagnosis import bundle, evidence, log_answer, log_files, rules
from kimi_prov.runner import redaction
from kimi_prov.show.text import diagnose as diagnose_text
from kimi_prov.show.text import diagnose_log as log_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.runner.redaction import Masker
    from kimi_prov.show.output import Output

# Seconds after which reading shows a bar.
_BAR_AFTER_S = 3


@click.command(cls=Command)
@add_options(
    click.argument("path", type=PATH, metavar="[INVENTORY]", required=False),
    click.option(
        "--log",
        "logs",
        type=PATH,
        multiple=True,
        metavar="FILE",
        help="A log, folder of logs or bundle to read in place of hosts; - for standard input.",
    ),
    LIMIT,
    click.option(
        "--to",
        type=PATH,
        metavar="FILE",
        help="The bundle to write.  [default: kimi-diagnose-TIME.tar.gz here]",
    ),
    add_output_options,
    add_playbook_options,
)
def diagnose(
    path: Path | None,
    logs: tuple[Path, ...],
    options: PlaybookOptions,
    output: Output,
    to: Path | None,
) -> ExitCode:
    """Find the cause of what went wrong, on hosts or in any log.

    With an INVENTORY it also writes a bundle for a bug report: facts, plan, units, logs, metrics
    and versions of each host, secrets masked; only you may read it. Exits 3 for a fault that keeps
    the model from serving.

    With --log it reads files alone: the output of journalctl, dmesg, docker logs, kubectl logs, a
    SLURM job or an engine. Nothing leaves this computer. Exits 1 where it recognises a fault.
    """
    output.check()
    if logs:
        return _diagnose_logs(path, logs, output, to)
    if path is None:
        raise UserError(
            "diagnose: neither an inventory nor a log is named",
            fix="kimi-prov diagnose INVENTORY, or kimi-prov diagnose --log FILE",
        )
    return _diagnose_hosts(path, options, output, to)


def _diagnose_logs(
    path: Path | None, logs: tuple[Path, ...], output: Output, to: Path | None
) -> ExitCode:
    if path is not None or to is not None:
        raise UserError(
            "diagnose --log reads files alone: it takes no inventory and writes no bundle",
            fix=f"kimi-prov diagnose --log {shlex.quote(str(logs[0]))}",
        )
    scanner = Scanner(Patterns(load_catalogue().troubles))
    with _show_progress(log_files.count_bytes(logs)) as advance:
        for name, lines in log_files.read_logs(logs, advance):
            scanner.begin(name)
            for line in lines:
                scanner.read(line)
    answer = log_answer.build_answer(scanner, redaction.Masker().mask)
    output.write(
        answer.document,
        lambda: log_text.format_text(answer.document, answer.followed, answer.around),
    )
    return ExitCode.FAILED if answer.document["findings"] else ExitCode.OK


@contextmanager
def _show_progress(size: int) -> Iterator[Callable[[int], None]]:
    """Yield what takes the bytes that were read, and shows a bar at a terminal after a while."""
    began = time.monotonic()
    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task("reading", total=size or None)

    def advance(count: int) -> None:
        if sys.stderr.isatty() and time.monotonic() - began > _BAR_AFTER_S:
            bar.start()
        bar.advance(task, count)

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()


def _diagnose_hosts(
    path: Path, options: PlaybookOptions, output: Output, to: Path | None
) -> ExitCode:
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name = f"kimi-diagnose-{when}"
    file = to or Path(f"{name}.tar.gz")
    file_transfer.require_new(file)
    with tempfile.TemporaryDirectory(prefix="kimi-diagnose-") as folder:
        variables = {"diagnose_folder": folder}
        inventory, request = playbook_run.prepare("diagnose", "diagnose", path, options, variables)
        masker = redaction.make_masker(
            inventory.machines, inventory.base, request.connection.secrets()
        )
        finished = playbook_run.run(request, inventory)
        gathered = {
            host: found
            for host in inventory.machines
            if (found := _read(Path(folder) / f"host-{quote(host, safe='')}.json", masker))
        }
    statuses = group_lifecycle.mark_sleeping_ranks(
        {host: found.get("status") or {} for host, found in gathered.items()}
    )
    split = gateway_faults.find_split_gateways(statuses)
    hosts = {
        host: _build_entry({**found, "status": statuses[host]}, split.get(host, ""))
        for host, found in gathered.items()
    }
    host_reports.add_failed(hosts, finished.outcome.failures, _make_unreached)
    blockers = [row for host in hosts.values() for row in host["findings"] if _is_blocker(row)]
    document = {
        "schema": "kimi-prov/diagnose/v1",
        "ok": bool(hosts) and all(host["ok"] for host in hosts.values()),
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "version": __version__,
        "bundle": None,
        "bundle_bytes": None,
        "hosts": hosts,
    }
    if gathered:
        document["bundle"] = str(file)
        document["bundle_bytes"] = _write(file, name, document, gathered)
    if hosts:
        output.write(document, lambda: diagnose_text.format_text(document))
    return playbook_run.conclude(finished, *([ExitCode.BLOCKED] if blockers else []))


def _read(file: Path, masker: Masker) -> Mapping[str, Any]:
    """Return what a host gathered, masked; empty where there is no file.

    Keys in local files that its plan names are masked too.
    """
    if not file.exists():
        return {}
    # The plugin wrote the file from an answer that it had cleaned.
    found = json.loads(file.read_text(encoding="utf-8"))
    plan = found.get("plan") if isinstance(found, dict) else None
    if isinstance(plan, dict):
        masker.add(redaction.find_plan_secrets(cast("MachinePlan", plan)))
    masked = redaction.mask_value(found, masker.mask)
    return masked if isinstance(masked, dict) else {}


def _build_entry(gathered: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Return a host's entry: the findings, and what could not be gathered.

    `split`: the hosts that have this gateway's address as well.
    """
    status = gathered.get("status") or {}
    found = rules.run_rules(evidence.read_evidence(gathered, split))
    return {
        "ok": bool(status.get("ok")) and not any(map(_is_blocker, found)),
        "reached": True,
        "provisioned": bool(status.get("provisioned")),
        "detail": str(status.get("detail") or "nothing is known of what runs"),
        "findings": found,
        "missing": dict(gathered.get("missing") or {}),
    }


def _make_unreached(why: str) -> dict[str, Any]:
    return {
        "ok": False,
        "reached": False,
        "provisioned": False,
        "detail": why,
        "findings": [],
        "missing": {},
    }


def _is_blocker(finding: Mapping[str, Any]) -> bool:
    return bool(finding["severity"] == "blocker")


def _write(
    file: Path, name: str, document: Mapping[str, Any], gathered: Mapping[str, Mapping[str, Any]]
) -> int:
    try:
        return bundle.write(file, name, bundle.list_files(document, gathered))
    except OSError as error:
        raise UserError(
            f"{file}: cannot be written: {error.strerror}",
            fix="make room there, or name a file elsewhere with --to",
            exit_code=ExitCode.FAILED,
        ) from error
