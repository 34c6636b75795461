"""Common code of commands that fetch archives from machines to local files, or restore them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.commands.common import confirmation
from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.show.output import check_file

if TYPE_CHECKING:
    from collections.abc import Sequence


def choose_file(to: Path | None, kind: str, suffix: str) -> str:
    """Return the archives' path as a variable: `to`, else a name with host and time.

    Raises UserError where a file of that name exists, or cannot be written.
    """
    if to is not None:
        require_new(to)
        return format_variable(to)
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return format_variable(Path(f"{{host}}-{kind}-{when}{suffix}"))


def format_variable(path: Path) -> str:
    """Return a path as a variable in which Ansible sees no template."""
    text = str(path.absolute())
    if "{{" in text or "{%" in text or "{#" in text:
        raise UserError(f"{path}: Ansible would read this name as a template", fix="rename it")
    return text


def require_new(file: Path) -> None:
    """Raise UserError where --to names a file that exists, or that cannot be written."""
    check_file("--to", file)
    if file.exists():
        raise UserError(f"{file}: there is a file already", fix="name another with --to")
    folder = file.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(
            f"{file}: no file can be written there", fix="name one in a folder of yours with --to"
        )


def confirm_restore(
    command: Sequence[str], what: str, names: Sequence[str], limit: str | None
) -> None:
    """Ask whether `what` of the hosts `names` may be replaced. Raises UserError for a no.

    `command`: the command line that replaces it, without its option for the hosts.
    """
    hosts = clean_text.clean_line(limit or ", ".join(names))
    words = [*command, *confirmation.list_limit(limit)]
    confirmation.require_terminal(f"restore would replace {what} of {hosts}", words)
    confirmation.confirm(f"Replace {what} of {hosts}?", "not restored")
