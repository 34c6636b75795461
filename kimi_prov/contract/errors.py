"""The error type of the code on the managed machine, and its JSON form.

`{"error": {"message", "fix", "retryable"}}` is what a subcommand prints instead of its answer; the
progress file of a long job carries the inner object. The control machine reads both with
`HostError.from_answer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# How a unit of ours ends: systemd starts it again after the first, and leaves it after the second.
EXIT_TRANSIENT = 1
EXIT_PERMANENT = 2


class HostError(Exception):
    """An error on the managed machine, shown to the operator unchanged.

    `message` names the file, host or key; `fix` is what the operator can do about it, None where
    nothing better is known than to read the log; `retryable` says that trying again may help.
    """

    def __init__(self, message: str, fix: str | None = None, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.retryable = retryable

    @property
    def line(self) -> str:
        """Message and fix in one line, for a journal and for documents with room for one text."""
        return f"{self.message}; {self.fix}" if self.fix else self.message

    @property
    def exit_status(self) -> int:
        """How a process ends that failed with this."""
        return EXIT_TRANSIENT if self.retryable else EXIT_PERMANENT

    def to_json(self) -> dict[str, Any]:
        """Return the object that goes into the envelope, or into a progress file."""
        return {"message": self.message, "fix": self.fix, "retryable": self.retryable}

    @classmethod
    def from_system(cls, error: OSError) -> HostError:
        """Return the error of a system call in these terms."""
        text = describe_error(error)
        return cls(f"{error.filename}: {text}" if error.filename else text)

    @classmethod
    def from_answer(cls, answer: Mapping[str, object]) -> HostError | None:
        """Return the error that an answer carries, None where it carries none.

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
    """One line for an error of the system, without the noise of nested reprs."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return describe_error(reason)
    strerror = getattr(error, "strerror", None)
    text = strerror if isinstance(strerror, str) and strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
