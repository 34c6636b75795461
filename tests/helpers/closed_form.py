"""Holds documents that tests make to the closed form of their types: an undeclared key fails."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema
from document_schemas import DOCUMENTS

from kimi_prov.schemas.from_types import make_schema


@cache
def _validator(kind: Any) -> Any:
    return jsonschema.Draft202012Validator(make_schema(kind, closed=True))


def validate(document: object, name: str) -> None:
    """Hold a document to its type by its name: facts, plan, status, ..."""
    validate_part(document, DOCUMENTS[name])


def validate_part(part: object, kind: Any) -> None:
    """Hold a part of a document to its type. Raises jsonschema.ValidationError."""
    _validator(kind).validate(part)
