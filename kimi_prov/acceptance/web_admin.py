"""Reads the web UI's first administrator from a file of the control machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kimi_prov import documents
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

_EMAIL = re.compile(r"[^\s@:\"']+@[^\s@:\"']+\.[^\s@:\"']+")
_MAX_BYTES = 4096
_MIN_PASSWORD_LENGTH = 8
# The web UI hashes passwords with bcrypt, which takes no more bytes.
_MAX_PASSWORD_BYTES = 72
_FIX = "write one line, E-MAIL:PASSWORD, for example  admin@example.com:..."


def load_account(path: Path) -> dict[str, str]:
    """Return {"email", "password"} of the one line that counts.

    Raises UserError naming the file and what is wrong, never the password.
    """
    what = "the web UI's first administrator (kimi_web_admin_file)"
    text = documents.read_document(path, what=what, limit=_MAX_BYTES, fix=_FIX).text
    rows = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if len(rows) != 1:
        raise UserError(f"{path}: expected one line, found {len(rows)}", fix=_FIX)
    email, sign, password = rows[0].strip().partition(":")
    if not sign or not _EMAIL.fullmatch(email):
        raise UserError(f"{path}: expected E-MAIL:PASSWORD", fix=_FIX)
    if len(password) < _MIN_PASSWORD_LENGTH or not password.isprintable():
        raise UserError(
            f"{path}: the password has fewer than {_MIN_PASSWORD_LENGTH} characters, or characters "
            "that cannot be typed",
            fix="choose a longer one",
        )
    if len(password.encode()) > _MAX_PASSWORD_BYTES:
        raise UserError(
            f"{path}: the password has more than {_MAX_PASSWORD_BYTES} bytes",
            fix="choose a shorter one",
        )
    return {"email": email, "password": password}
