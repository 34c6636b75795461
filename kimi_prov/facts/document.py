"""Read facts documents from elsewhere, and check them against the schema."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov import documents, schemas
from kimi_prov.contract.node_kinds import classify_memory
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.documents import Document

_MAX_BYTES = 16 << 20


def read_facts(path: Path) -> Facts:
    """Return a facts document from a file. Raises UserError naming file, and line or key."""
    return parse_facts(
        documents.read_document(
            path, what="a facts file", limit=_MAX_BYTES, fix=_suggest_fix(path.name)
        )
    )


def parse_facts(document: Document) -> Facts:
    """Return the facts of a document whose text was read; raises UserError as `read_facts`."""
    fix = _suggest_fix(Path(document.name).name)
    return check_facts(document.json(fix), document.name, fix)


def _suggest_fix(name: str) -> str:
    return f"make it again on that machine:  python3 probe.pyz > {name}"


def check_facts(document: Any, where: str, fix: str) -> Facts:  # noqa: ANN401  (it is checked)
    """Return the document if it satisfies the facts schema. Raises UserError with the key."""
    import jsonschema  # noqa: PLC0415  (a tenth of a second, which only readers of files pay)

    errors = jsonschema.Draft202012Validator(schemas.load("facts")).iter_errors(document)
    first = min(errors, key=lambda error: (len(error.absolute_path), error.json_path), default=None)
    if first is not None:
        key, problem = _find_deepest(first)
        raise UserError(f"{where}: {key}: {problem}", fix=fix)
    facts: Facts = document
    # Earlier versions counted the memory of GPUs and HBM as the machine's.
    classify_memory(facts)
    return facts


def _find_deepest(error: ValidationError) -> tuple[str, str]:
    """Return key and fault; where a value may be null, the fault of the value that is not."""
    while error.context:
        error = max(error.context, key=lambda part: len(part.absolute_path))
    key = error.json_path.removeprefix("$").lstrip(".") or "the document"
    return key[:200], error.message[:200]
