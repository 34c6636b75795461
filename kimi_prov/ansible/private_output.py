"""What a plugin hands to the command that runs it, and to nobody else: keys and passwords."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

# Names the file of the command's own, in a folder that is removed with the run.
OUTPUT_VARIABLE = "KIMI_PROV_KEY_OUT"


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
