"""Files of the control machine: those that an inventory names, and a command's own for secrets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from kimi_prov.errors import UserError


def read_control_file(path: str, option: str, kind: str = "a file") -> str:
    """Return the text of a file that `option` names. Raises UserError where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UserError(
            f"{option}: {path} cannot be read: {reason}", fix=f"name {kind} on this machine"
        ) from error


def append_line(file: Path, line: dict[str, Any]) -> None:
    """Append one JSON line to the file that only its owner may read; no link is followed.

    Raises UserError where it cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    try:
        descriptor = os.open(file, flags, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            os.fchmod(stream.fileno(), 0o600)
            stream.write(json.dumps(line) + "\n")
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from error
