"""What any file gets, however odd: a document, or sentences of one line that name it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def read_or_refused(read: Callable[[Path], dict[str, Any]], path: Path) -> dict[str, Any] | None:
    """The document, or None where it was refused; any other error is a failure."""
    try:
        return read(path)
    except UserError as error:
        refusal = error.message
    lines = refusal.split("\n")
    assert len(lines) == 1 or lines[0].endswith("faults")
    assert len(lines) <= 22
    for line in lines:
        assert line.startswith(str(path))
        assert len(line) < 1000
    refusal.encode()
    return None
