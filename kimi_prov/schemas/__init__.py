"""The JSON Schema of each document that kimi-prov reads or writes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def load(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a document by its name: facts, spec, plan, check, verify, ..."""
    file = Path(__file__).resolve().parent / f"{name}.json"
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document
