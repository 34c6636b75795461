"""The error that a user sees, with its fix, and the exit codes.

Decides: messages for failed hosts, and exit codes (the exit codes).
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The documented exit codes of every command."""

    OK = 0
    FAILED = 1
    BAD_INPUT = 2
    BLOCKED = 3
    UNREACHABLE = 4
    INTERRUPTED = 130


class UserError(Exception):
    """A message for the person at the terminal; never shown with a traceback.

    `message` names the file, line, key or host and what was expected; `fix` is the command
    or edit that corrects it.
    """

    def __init__(
        self, message: str, *, fix: str | None = None, exit_code: ExitCode = ExitCode.BAD_INPUT
    ) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.fix}" if self.fix else self.message
