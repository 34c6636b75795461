"""`kimi-prov submit|jobs|cancel`: the jobs of a folder that `render slurm` made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.commands.slurm.folder import Folder
from kimi_prov.contract import clean_text
from kimi_prov.contract.errors import HostError
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.cluster.submit import check_suite
from kimi_prov.show.output import say
from kimi_prov.show.text import slurm

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kimi_prov.show.output import Output

# How a program answers that took every word for a job's name.
_OLDER = "no job is called '--suite'"


def submit(
    path: Path,
    login: str | None,
    names: Sequence[str],
    output: Output,
    *,
    force: bool,
    suite: str | None = None,
) -> ExitCode:
    """Bring the folder to the cluster where it is not, and submit its jobs.

    `suite`: of the checks that the job `accept` runs. Raises UserError.
    """
    output.check()
    if suite is not None:
        try:
            check_suite(names)
        except HostError as error:
            raise UserError(error.message, fix=error.fix) from None
    folder = Folder.read(path, login)
    if folder.login:
        _tell(folder, folder.bring(force=force))
    more = ["--suite", suite] if suite else []
    try:
        document = folder.call("submit", *more, *names, schema="submit")
    except UserError as error:
        if not (more and _OLDER in error.message):
            raise
        raise UserError(
            f"{path}: --suite: the program of the folder is of a kimi-prov that knows none",
            fix="render the folder again with this one",
        ) from None
    output.write(document, lambda: slurm.submitted(document))
    target = _words(path, login)
    serves = any(row["name"] == "serve" for row in document["jobs"])
    say(f"next:  kimi-prov jobs {target}")
    if serves:
        say(f"       kimi-prov connect {target}    # waits until the server answers")
    return ExitCode.OK


def _tell(folder: Folder, done: dict[str, Any]) -> None:
    """Say what was copied to the cluster, and what was left alone there."""
    written = done.get("written") or []
    say(f"{folder.login}:{clean_text.clean_line(folder.there)}: {len(written)} files written")
    for name in done.get("kept") or []:
        say(
            f"  kept, for it was changed there: {clean_text.clean_line(name)} (--force overwrites "
            "it)"
        )


def jobs(path: Path, login: str | None, output: Output) -> ExitCode:
    """Say what the folder's jobs do, and where its servers answer."""
    output.check()
    document = Folder.read(path, login).call("jobs", schema="jobs")
    output.write(document, lambda: slurm.jobs(document))
    return ExitCode.FAILED if slurm.serves_no_more(document) else ExitCode.OK


def cancel(
    path: Path, login: str | None, names: Sequence[str], output: Output, *, now: bool
) -> ExitCode:
    """End jobs of the folder, a server's gently."""
    output.check()
    words = [*(["--now"] if now else []), *names]
    document = Folder.read(path, login).call("cancel", *words, schema="cancel")
    output.write(document, lambda: slurm.cancelled(document))
    return ExitCode.OK


def _words(path: Path, login: str | None) -> str:
    """Return what names the folder in the next command."""
    found = clean_text.quote_word(path)
    return found if login is None else f"{found} --login {clean_text.quote_word(login)}"
