"""Facts documents from elsewhere: read, and checked against the schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kimi_prov import schemas
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from jsonschema.exceptions import ValidationError

_LARGEST_BYTES = 16 << 20


def read(path: Path, text: str | None = None) -> dict[str, Any]:
    """Return a facts document from a file. Raises UserError naming file, and line or key.

    `text` is what stands in the file, where that was read already.
    """
    fix = f"make it again on that machine:  python3 probe.pyz > {path.name}"
    try:
        document = json.loads(_text(path, fix) if text is None else text)
        json.dumps(document, ensure_ascii=False).encode()  # half a character cannot be printed
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}", fix=fix) from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not JSON: {error.msg}", fix=fix) from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}: not JSON in UTF-8", fix=fix) from None
    return check(document, str(path), fix)


def _text(path: Path, fix: str) -> str:
    if path.stat().st_size > _LARGEST_BYTES:
        raise UserError(f"{path}: larger than a facts file can be", fix=fix)
    return path.read_text(encoding="utf-8")


def check(document: Any, where: str, fix: str) -> dict[str, Any]:  # noqa: ANN401  (it is checked)
    """Return the document if it satisfies the facts schema. Raises UserError naming the key."""
    import jsonschema  # noqa: PLC0415  (a tenth of a second, which only readers of files pay)

    errors = jsonschema.Draft202012Validator(schemas.load("facts")).iter_errors(document)
    first = min(errors, key=lambda error: (len(error.absolute_path), error.json_path), default=None)
    if first is not None:
        key, problem = _deepest(first)
        raise UserError(f"{where}: {key}: {problem}", fix=fix)
    found: dict[str, Any] = document
    return found


def _deepest(error: ValidationError) -> tuple[str, str]:
    """Return key and fault; where a value may be null, the fault of the value that is not."""
    while error.context:
        error = max(error.context, key=lambda part: len(part.absolute_path))
    key = error.json_path.removeprefix("$").lstrip(".") or "the document"
    return key[:200], error.message[:200]
