"""Read the user's API key from KIMI_API_KEY or a file. It is never an argument."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from kimi_prov import documents
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "KIMI_API_KEY"
_KEY = re.compile(r"[\x21-\x7e]{1,512}")
_KEY_BYTES = 1 << 16


def read_key(file: Path | None) -> str | None:
    """Return the key in the file, else the key in the environment; None without either."""
    if file is not None:
        fix = "name a file that holds only the key"
        found = documents.read_document(file, what="a key", limit=_KEY_BYTES, fix=fix).text.strip()
        return check_key(found, str(file))
    found = os.environ.get(VARIABLE, "").strip()
    return check_key(found, VARIABLE) if found else None


def check_key(key: str, where: str) -> str:
    """Return the key if a request's header can hold it. Raises UserError for another text."""
    if not _KEY.fullmatch(key):
        raise UserError(f"{where}: expected a key, text without spaces", fix="correct it")
    return key
