"""`kimi-prov web backup|restore`: carry what the page keeps to this computer and back."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kimi_prov.commands import host_reports, playbook_run
from kimi_prov.console import web_text
from kimi_prov.console.output import check_file
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError

if TYPE_CHECKING:
    from kimi_prov.commands.playbook_run import PlaybookOptions
    from kimi_prov.console.output import Output
    from kimi_prov.runner.inventory import Inventory

_GZIP = b"\x1f\x8b"


def backup(path: Path, to: Path | None, options: PlaybookOptions, output: Output) -> ExitCode:
    """Write an archive of each host's page; `to` names it where there is one host.

    Raises UserError where a file of that name is there, or cannot be written.
    """
    output.check()
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name = to or Path(f"{{host}}-web-{when}.tar.gz")
    variables = {"web_work": "backup", "web_file": _file(name)}
    if to is not None:
        _require_new(to)
    inventory, request = playbook_run.prepare("web", "web", path, options, variables)
    finished = playbook_run.run(request, inventory)
    return host_reports.publish("web", finished, output, web_text.backup, _unreached)


def restore(
    path: Path, file: Path, options: PlaybookOptions, output: Output, *, confirmed: bool
) -> ExitCode:
    """Put an archive in the place of what one host's page keeps; ask unless `confirmed`.

    Raises UserError where the file is no archive.
    """
    output.check()
    _require_archive(file)
    variables = {"web_work": "restore", "web_file": _file(file)}
    inventory, request = playbook_run.prepare("web", "web", path, options, variables)
    if not confirmed:
        _confirm(path, inventory, file, options.limit)
    finished = playbook_run.run(request, inventory)
    return host_reports.publish("web", finished, output, web_text.restore, _unreached)


def _file(path: Path) -> str:
    """Return a path as a variable that Ansible takes as it is."""
    text = str(path.absolute())
    if "{{" in text or "{%" in text or "{#" in text:
        raise UserError(f"{path}: Ansible would read this name as a template", fix="rename it")
    return text


def _require_new(file: Path) -> None:
    check_file("--to", file)
    if file.exists():
        raise UserError(f"{file}: there is a file already", fix="name another with --to")
    folder = file.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(
            f"{file}: no file can be written there", fix="name one in a folder of yours with --to"
        )


def _require_archive(file: Path) -> None:
    """Refuse what is no archive before a machine is asked."""
    wanted = "name an archive that `kimi-prov web backup` wrote"
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}", fix=wanted) from error
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if not regular or os.read(descriptor, len(_GZIP)) != _GZIP:
            raise UserError(f"{file}: this is no archive of a page", fix=wanted)
    finally:
        os.close(descriptor)


def _confirm(path: Path, inventory: Inventory, file: Path, limit: str | None) -> None:
    hosts = clean_text.line(limit or ", ".join(inventory.hosts))
    if not sys.stdin.isatty():
        words = ["kimi-prov", "web", "restore", str(path), str(file)]
        words += ["--limit", limit] if limit else []
        raise UserError(
            f"restore would replace all accounts, chats and uploads of {hosts}, and there is no "
            "terminal to ask on",
            fix=f"if that is meant:  {shlex.join([*words, '--yes'])}",
        )
    if not click.confirm(f"Replace ALL accounts, chats and uploads of {hosts}?", err=True):
        raise UserError("not restored: the answer was no", fix="answer y, or give --yes")


def _unreached(why: str) -> dict[str, Any]:
    return {"ok": False, "detail": why}
