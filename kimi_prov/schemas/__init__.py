"""The JSON Schema of each document that kimi-prov reads or writes."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

# A key of its own line in YAML, or behind a brace or comma in JSON and in YAML written like it.
_KEY = re.compile(r"""(?:^|[{,]\s*)["']?schema["']?\s*:[ \t]*["']?([\w./-]*)""", re.MULTILINE)


@cache
def load(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a document by its name: facts, spec, plan, check, verify, ..."""
    file = Path(__file__).resolve().parent / f"{name}.json"
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


def named_in(text: str) -> str | None:
    """Return what a document's text names as its schema; None where it names none."""
    found = _KEY.search(text)
    return found[1] if found else None
