"""A file that describes a load: read as data, every fault of it told at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov import documents, schemas
from kimi_prov.documents import line_of, spelled
from kimi_prov.errors import UserError
from kimi_prov.facts.form import MisfitError, fit
from kimi_prov.packaging import resources
from kimi_prov.sizing.load import NAMES

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.documents import Document

SCHEMA = "kimi-prov/load/v1"
_LARGEST_BYTES = 1 << 20
# Beyond that a list of faults helps nobody.
_MOST_FAULTS = 20


def read(path: Path) -> dict[str, Any]:
    """Return what a load file asks for, by the names of `Load`'s fields.

    Raises UserError for what is no load, and names each key that is wrong with its line.
    """
    fix = f"see {resources.page('guides/sizing.md')} for a load file that is whole"
    found = documents.read(path, what="a load", limit=_LARGEST_BYTES, fix=fix)
    sheet = found.yaml(fix)
    faults = _faults(sheet)
    if faults:
        shown = [_told(found, fault) for fault in faults[:_MOST_FAULTS]]
        raise UserError("\n".join(shown), fix=faults[0].fix or fix)
    asked = {name: sheet[name] for name in NAMES if name in sheet}
    if not asked:
        raise UserError(
            f"{found.name}: this load asks for nothing",
            fix="set users: N, or tokens_per_day: N",
        )
    whole = schemas.load("load")["properties"]
    return {
        name: int(value) if whole[name]["type"] == "integer" else float(value)
        for name, value in asked.items()
    }


def _faults(sheet: Any) -> list[MisfitError]:  # noqa: ANN401  (it is judged)
    """Judge each key alone, so that one fault hides no other."""
    schema = schemas.load("load")
    if not isinstance(sheet, dict):
        return _fault(sheet, schema)
    alone = {**schema, "required": []}
    faults = [fault for key, value in sheet.items() for fault in _fault({key: value}, alone)]
    if "schema" not in sheet:
        problem = f"key 'schema' is missing; write  schema: {SCHEMA}"
        faults.insert(0, MisfitError((), problem))
    return faults


def _fault(value: Any, schema: dict[str, Any]) -> list[MisfitError]:  # noqa: ANN401
    try:
        fit(value, schema)
    except MisfitError as fault:
        return [fault]
    return []


def _told(document: Document, fault: MisfitError) -> str:
    line = line_of(document.text, fault.path)
    where = f"{document.name}:{line}" if line else document.name
    return f"{where}: {spelled(fault.path) or 'the document'}: {fault.problem}"
