"""`kimi-prov submit|jobs|cancel`: the jobs of a folder that `render slurm` made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import LOGIN, PATH, SUITES, add_output_options
from kimi_prov.commands.slurm.folder import Folder
from kimi_prov.contract import clean_text
from kimi_prov.contract.errors import HostError
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.cluster.submit import check_suite
from kimi_prov.show.output import say
from kimi_prov.show.text import slurm

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.contract.documents.jobs import Cancel, Jobs
    from kimi_prov.contract.documents.submit import Submit
    from kimi_prov.show.output import Output

# The answer of an older program, for which every word is a job's name.
_OLDER = "no job is called '--suite'"
_RENDERED = click.argument("path", type=PATH, metavar="DIR")


@click.command(cls=Command)
@_RENDERED
@click.argument("names", nargs=-1, metavar="[JOB]...")
@LOGIN
@click.option(
    "--suite",
    type=SUITES,
    help="The checks of the job accept; full asks SLURM for a walltime of 4 hours.  "
    "[default: basic]",
)
@click.option("--force", is_flag=True, help="Overwrite files that were changed there, too.")
@add_output_options
def submit(
    path: Path,
    names: tuple[str, ...],
    output: Output,
    *,
    login: str | None,
    suite: str | None,
    force: bool,
) -> ExitCode:
    """Submit jobs of a folder that `render slurm` made: environment, weights and server.

    JOB chooses others: environment, weights, serve, tune, bench, accept. A job that is complete,
    waits or runs is reported and not submitted. With `--login` the folder is copied to the cluster
    first, to renders/ below its root.
    """
    output.check()
    if suite is not None:
        try:
            check_suite(names)
        except HostError as error:
            raise UserError(error.message, fix=error.fix) from None
    folder = Folder.read(path, login)
    if folder.login:
        _report_copy(folder, folder.bring(force=force))
    more = ["--suite", suite] if suite else []
    try:
        document: Submit = folder.call("submit", *more, *names, schema="submit")
    except UserError as error:
        if not (more and _OLDER in error.message):
            raise
        raise UserError(
            f"{path}: --suite: the folder was rendered by a kimi-prov without this option",
            fix="render the folder again with this version",
        ) from None
    output.write(document, lambda: slurm.format_submitted(document))
    target = _format_target(path, login)
    serves = any(row["name"] == "serve" for row in document["jobs"])
    say(f"next:  kimi-prov jobs {target}")
    if serves:
        say(f"       kimi-prov connect {target}    # waits until the server answers")
    return ExitCode.OK


def _report_copy(folder: Folder, done: dict[str, Any]) -> None:
    """Report the files that were copied to the cluster, and those kept there."""
    written = done.get("written") or []
    say(f"{folder.login}:{clean_text.clean_line(folder.there)}: {len(written)} files written")
    for name in done.get("kept") or []:
        say(f"  kept, because changed there: {clean_text.clean_line(name)} (--force overwrites it)")


@click.command(cls=Command)
@_RENDERED
@LOGIN
@add_output_options
def jobs(path: Path, login: str | None, output: Output) -> ExitCode:
    """Show the jobs of a rendered folder: state, nodes, address, time left, successor.

    Exits 1 where the newest server failed or was lost.
    """
    output.check()
    document: Jobs = Folder.read(path, login).call("jobs", schema="jobs")
    output.write(document, lambda: slurm.format_jobs(document))
    return ExitCode.FAILED if slurm.has_lost_server(document) else ExitCode.OK


@click.command(cls=Command)
@_RENDERED
@click.argument("names", nargs=-1, metavar="[JOB|ID]...")
@LOGIN
@click.option("--now", is_flag=True, help="Kill a server too, with its answers in progress.")
@add_output_options
def cancel(
    path: Path, names: tuple[str, ...], login: str | None, output: Output, *, now: bool
) -> ExitCode:
    """End jobs of a rendered folder by name or number, or all of them.

    A server takes no more requests, lets answers end, and has no successor.
    """
    output.check()
    words = [*(["--now"] if now else []), *names]
    document: Cancel = Folder.read(path, login).call("cancel", *words, schema="cancel")
    output.write(document, lambda: slurm.format_cancelled(document))
    return ExitCode.OK


def _format_target(path: Path, login: str | None) -> str:
    """Return the folder and login as words of the next command."""
    found = clean_text.quote_word(path)
    return found if login is None else f"{found} --login {clean_text.quote_word(login)}"
