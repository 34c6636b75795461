"""Facts documents from elsewhere: read, and checked against the schema."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from kimi_prov.errors import UserError

_SCHEMA = Path(__file__).resolve().parent / "schema"


@cache
def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of `facts` or `plan`."""
    document: dict[str, Any] = json.loads((_SCHEMA / f"{name}.json").read_text(encoding="utf-8"))
    return document


def read(path: Path) -> dict[str, Any]:
    """Return a facts document from a file. Raises UserError naming file, and line or key."""
    fix = f"make it again on that machine:  python3 probe.pyz > {path.name}"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}", fix=fix) from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not JSON: {error.msg}", fix=fix) from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}: not JSON", fix=fix) from None
    return check(document, str(path), fix)


def check(document: Any, where: str, fix: str) -> dict[str, Any]:  # noqa: ANN401  (it is judged)
    """Return the document if it satisfies the facts schema. Raises UserError naming the key."""
    import jsonschema  # noqa: PLC0415  (a tenth of a second, which only readers of files pay)

    errors = jsonschema.Draft202012Validator(schema("facts")).iter_errors(document)
    first = next(iter(sorted(errors, key=lambda error: error.json_path)), None)
    if first is not None:
        key = first.json_path.removeprefix("$").lstrip(".") or "the document"
        raise UserError(f"{where}: {key}: {first.message[:200]}", fix=fix)
    found: dict[str, Any] = document
    return found
