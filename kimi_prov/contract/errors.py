"""The error type of the code on the managed machine, and its JSON form.

A subcommand prints `{"error": {"message", "fix", "retryable"}}` instead of its answer; the progress
file of a long job has the inner object. The control machine reads both with
`HostError.from_answer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Exit statuses of our units: systemd starts a unit again after the first, but not after the second.
EXIT_TRANSIENT = 1
EXIT_PERMANENT = 2
# What every command says of a machine on which nothing is applied, and the fix.
NOT_APPLIED = ("nothing is applied on this machine", "run `kimi-prov apply` first")


class HostError(Exception):
    """An error on the managed machine, shown to the operator unchanged.

    `message` names the file, host or key; `fix` is what the operator can do about it, None where
    only the log may help; `retryable` says that trying again may help.
    """

    def __init__(self, message: str, fix: str | None = None, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.retryable = retryable

    @property
    def line(self) -> str:
        """Return message and fix in one line, for a journal and for documents with one text."""
        return f"{self.message}; {self.fix}" if self.fix else self.message

    @property
    def exit_status(self) -> int:
        """Return the exit status of a process that failed with this."""
        return EXIT_TRANSIENT if self.retryable else EXIT_PERMANENT

    def to_json(self) -> dict[str, Any]:
        """Return the object that goes into the envelope, or into a progress file."""
        return {"message": self.message, "fix": self.fix, "retryable": self.retryable}

    @classmethod
    def from_system(cls, error: OSError) -> HostError:
        """Return the error of a system call as a HostError."""
        text = describe_error(error)
        return cls(f"{error.filename}: {text}" if error.filename else text)

    @classmethod
    def from_answer(cls, answer: Mapping[str, object]) -> HostError | None:
        """Return the error in an answer, None where it has none.

        Understands what the versions before this envelope wrote: a sentence as `error`, or
        `refused` beside `fix`. A machine has such a version until the next apply replaces it.
        """
        inner = answer.get("error")
        if isinstance(inner, Mapping):
            fix = inner.get("fix")
            return cls(
                str(inner.get("message") or "it gave no reason"),
                str(fix) if fix else None,
                retryable=bool(inner.get("retryable")),
            )
        if inner is not None:
            return cls(str(inner))
        if "refused" in answer:
            fix = answer.get("fix")
            return cls(str(answer["refused"]), str(fix) if fix else None)
        return None


def describe_error(error: BaseException) -> str:
    """Return one line for an error of the system, without the noise of nested reprs."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return describe_error(reason)
    strerror = getattr(error, "strerror", None)
    text = strerror if isinstance(strerror, str) and strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
