"""Files of the control machine that the inventory names."""

from __future__ import annotations

from pathlib import Path

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
