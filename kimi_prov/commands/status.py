"""`kimi-prov status`: report what runs, and its bill of materials."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from kimi_prov.commands.common import (
    gateway_faults,
    group_lifecycle,
    host_reports,
    playbook_run,
    rendered,
)
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import add_folder_options
from kimi_prov.commands.kubernetes import status as kubernetes
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.show.live.watch import WatchScreen, is_drawable
from kimi_prov.show.output import say
from kimi_prov.show.text import status as status_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.operate.kubernetes.kubectl import Target
    from kimi_prov.show.output import Output


@click.command(cls=Command)
@add_folder_options(
    click.option(
        "--sbom", is_flag=True, help="Write the engines' bill of materials: CycloneDX JSON."
    ),
    click.option("--watch", is_flag=True, help="Show what each machine does until Ctrl-C."),
    click.option(
        "--interval",
        type=click.FloatRange(1, 3600),
        default=5.0,
        show_default=True,
        metavar="SECONDS",
        help="Seconds between two updates of --watch.",
    ),
)
@click.pass_context
def status(  # noqa: PLR0913  (one for each option)
    context: click.Context,
    /,
    path: Path,
    options: PlaybookOptions,
    output: Output,
    target: Target,
    *,
    sbom: bool,
    watch: bool,
    interval: float,
) -> ExitCode:
    """Show what runs: units, versions, model, RAM disk, port. Exits 1 when a host does not serve.

    DIR is a folder that `render kubernetes` made: the command shows its pods, restarts, nodes and
    state, and exits 0 for a model that was stopped on purpose.

    With `--watch` it shows tokens a second, requests, cache, GPUs and memory every few seconds: as
    one screen on a terminal, else as a line each time.

    With `--sbom` it writes a software bill of materials instead, for all hosts in one document: a
    list of packages with `--format text`. Exits 1 when a host is not provisioned.
    """
    if sbom and watch:
        raise click.UsageError("--sbom and --watch: a list of packages does not change by itself")
    if watch:
        return _watch(path, options, output, target, interval)
    if not sbom:
        return _report(path, options, output, target)
    if context.get_parameter_source("form") is click.core.ParameterSource.DEFAULT:
        output = replace(output, format="json")
    return _write_sbom(path, options, output, target)


def _report(path: Path, options: PlaybookOptions, output: Output, target: Target) -> ExitCode:
    """Report what runs on every host; exit 1 where a host does not serve."""
    if rendered.is_kubernetes(path, "status", target, options.list_given()):
        return kubernetes.run(path, target, output)
    output.check()
    finished = host_reports.collect("status", path, options)
    documents = group_lifecycle.mark_sleeping_ranks(
        gateway_faults.mark_split_gateways(finished.outcome.documents)
    )
    finished = replace(finished, outcome=replace(finished.outcome, documents=documents))
    return host_reports.publish(
        "status", finished, output, status_text.format_text, _make_unreached
    )


def _watch(
    path: Path, options: PlaybookOptions, output: Output, target: Target, every_s: float
) -> ExitCode:
    """Show what every host does repeatedly, until the user ends it.

    Raises UserError for JSON, a file, and a folder of a cluster.
    """
    rendered.is_kubernetes(path, "status --watch", target, {"watch": True})
    if output.format != "text" or output.file is not None:
        raise UserError(
            "--watch is a screen that changes: it is neither JSON nor a file",
            fix="run  kimi-prov status --format json  repeatedly, or read the metrics",
        )
    inventory, request = playbook_run.prepare(
        "status", "status", path, options, {"status_every": every_s}
    )
    request = playbook_run.keep_workers(request, inventory)
    screen = WatchScreen(sys.stdout, every_s, terminal=is_drawable(sys.stdout))
    finished = playbook_run.run(request, inventory, screen=screen)
    return playbook_run.conclude(finished)


def _write_sbom(path: Path, options: PlaybookOptions, output: Output, target: Target) -> ExitCode:
    """Write the bill of materials of every host's engine; exit 1 where one is not known."""
    rendered.is_kubernetes(path, "status --sbom", target, {"sbom": True})
    from kimi_prov.catalog import loader  # noqa: PLC0415  (a status without it pays for neither)
    from kimi_prov.show.report import sbom  # noqa: PLC0415

    output.check()
    finished = host_reports.collect("status", path, options)
    catalogue = loader.load_catalogue()
    machines, unknown = [], []
    for host, found in finished.outcome.documents.items():
        if "monitor" in found or "gateway" in found:
            # A gateway has no engine: its programs are the distribution's.
            if found.get("web"):
                say(f"{host}: its web UI has the packages of {found['web']['lock']}")
            continue
        why = _explain_unknown(found, catalogue)
        if why:
            unknown.append(f"{host}: {why}")
        else:
            locks = {name: catalogue.lock(name) for name in found["versions"]["engine_locks"]}
            name = (found.get("web") or {}).get("lock")
            page = {name: catalogue.lock(name)} if name in catalogue.locks else {}
            machines.append(sbom.Machine(host, found, locks, page))
    if machines:
        output.write(sbom.build_document(machines), lambda: sbom.format_text(machines))
    for line in unknown:
        say(line)
    # A host whose service is down fails `status`, but its bill of materials is known.
    reported = finished.outcome.documents
    failures = [f for f in finished.outcome.failures if f.host not in reported]
    finished = replace(finished, outcome=replace(finished.outcome, failures=failures))
    return playbook_run.conclude(finished, *([ExitCode.FAILED] if unknown else []))


def _explain_unknown(found: Mapping[str, Any], catalogue: Catalogue) -> str | None:
    """Return why the local locks do not show the packages of a host's environment."""
    from kimi_prov.planner.selection import engine  # noqa: PLC0415

    if not found.get("provisioned"):
        return f"no bill of materials: {found['detail']}"
    versions = found["versions"]
    locks = [str(name) for name in versions.get("engine_locks") or ()]
    folder = PurePosixPath(versions["engine_directory"] or "").name
    brought = (versions.get("engine_interpreter") or {}).get("sha256")
    if not folder or not locks:
        return "no bill of materials: it does not report its engine's lock\n  fix: apply"
    if not all(name in catalogue.locks for name in locks) or not folder.endswith(
        f"-{engine.compute_env_digest(catalogue, locks, brought)}"
    ):
        return (
            f"no bill of materials: {folder} was not made from the lock files of this version\n"
            "  fix: apply, or use the version of kimi-prov that made it"
        )
    return None


def _make_unreached(reason: str) -> dict[str, Any]:
    return {**host_reports.make_unreached(reason), "provisioned": False, "stand_ins": []}
