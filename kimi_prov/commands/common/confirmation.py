"""Asking before something is taken away: on a terminal, or never where --yes is missing."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import click

from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence


def require_terminal(does: str, command: Sequence[str], *, check: bool = False) -> None:
    """Raise UserError where nobody can be asked. `does`: what the command would do.

    `command`: the command line that needs no answer, without --yes. `check`: it has --check too.
    """
    if sys.stdin.isatty():
        return
    words = ["kimi-prov", *command]
    look = f"see what:  {shlex.join([*words, '--check'])}; " if check else ""
    raise UserError(
        f"{does}, and there is no terminal to ask on",
        fix=f"{look}if that is meant:  {shlex.join([*words, '--yes'])}",
    )


def confirm(question: str, refused: str) -> None:
    """Raise UserError where the answer to the question is no. `refused`: what was not done then."""
    if not click.confirm(question, err=True):
        raise UserError(f"{refused}: the answer was no", fix="answer y, or give --yes")


def list_limit(limit: str | None) -> list[str]:
    """Return the words by which a command line names its hosts."""
    return ["--limit", limit] if limit else []
