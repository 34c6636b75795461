"""Ask before something is removed; without a terminal --yes is required."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import click

from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence


def require_terminal(does: str, command: Sequence[str], *, check: bool = False) -> None:
    """Raise UserError without a terminal. `does`: what the command would do.

    `command`: its command line, without --yes. `check`: it has the option --check too.
    """
    if sys.stdin.isatty():
        return
    words = ["kimi-prov", *command]
    look = f"see what:  {shlex.join([*words, '--check'])}; " if check else ""
    raise UserError(
        f"{does}, and there is no terminal to ask on",
        fix=f"{look}if you want that:  {shlex.join([*words, '--yes'])}",
    )


def confirm(question: str, refused: str) -> None:
    """Raise UserError where the answer to the question is no. `refused`: its message."""
    if not click.confirm(question, err=True):
        raise UserError(f"{refused}: the answer was no", fix="answer y, or give --yes")


def list_limit(limit: str | None) -> list[str]:
    """Return the option --limit of a command line, if any."""
    return ["--limit", limit] if limit else []
