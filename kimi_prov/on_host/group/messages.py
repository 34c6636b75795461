"""The messages between supervisors: one JSON object a line, bounded and strictly read.

Any program that reaches a member's address may send anything: whatever is not exactly one of these
messages ends the connection.
"""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]

MAX_LENGTH = 8192
_MAX_TEXT_LENGTH = 1000
# Kind of the message -> its fields and their types.
_KINDS: dict[str, dict[str, type]] = {
    # From a rank to the head: its identity, and what has to be equal.
    "hello": {"rank": int, "facts": dict},
    # From the head to a rank, before the start.
    "wait": {"hosts": list},
    "differs": {"keys": list},
    "go": {},
    # From the head to a rank: the engine has answered.
    "serving": {},
    # Both ways, every second.
    "beat": {},
    # From a rank to the head: its engine ended.
    "failed": {"why": str},
    # Both ways: stopped on purpose.
    "leaving": {"why": str},
    # From the head to a rank: this round is over; `final` where no other follows.
    "end": {"why": str, "final": bool},
}


class BadMessageError(ValueError):
    """A peer sent something that is no message; the text says what, without quoting it."""


def encode(kind: str, **fields: object) -> bytes:
    """Return a message as the line that is sent; long texts are cut."""
    whole = {
        name: value[:_MAX_TEXT_LENGTH] if isinstance(value, str) else value
        for name, value in fields.items()
    }
    return json.dumps({"kind": kind, **whole}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Read one line; raises BadMessageError for anything but a message."""
    try:
        found = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        raise BadMessageError("it is no JSON") from None
    if not isinstance(found, dict):
        raise BadMessageError("it is no object")
    kind = found.pop("kind", None)
    wanted = _KINDS.get(kind) if isinstance(kind, str) else None
    if wanted is None:
        raise BadMessageError("its kind is unknown")
    if set(found) != set(wanted):
        raise BadMessageError(f"a message of the kind {kind} has other fields")
    for name, of in wanted.items():
        if type(found[name]) is not of or not _is_bounded(found[name]):
            raise BadMessageError(f"{kind}: {name} is not as expected")
    return {"kind": kind, **found}


def _is_bounded(value: object) -> bool:
    """Return whether texts are short, and whether lists and mappings hold short texts alone."""
    if isinstance(value, str):
        return len(value) <= _MAX_TEXT_LENGTH
    if isinstance(value, list):
        return all(isinstance(inner, str) and _is_bounded(inner) for inner in value)
    if isinstance(value, dict):
        return all(isinstance(inner, str) and _is_bounded(inner) for inner in value.values())
    return True


class Reader:
    """Cuts the bytes of a connection into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """Add bytes and return the messages that are complete.

        Raises BadMessageError for anything but a message, and for a line that does not end.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LENGTH or any(len(line) > MAX_LENGTH for line in lines):
            raise BadMessageError(f"it is longer than {MAX_LENGTH} bytes")
        return [decode(line) for line in lines]
