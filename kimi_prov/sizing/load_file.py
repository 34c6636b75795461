"""A file that describes a load: read as data, every fault of it told at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov import documents, schemas
from kimi_prov.documents import Written
from kimi_prov.errors import UserError
from kimi_prov.facts.form import misfits, refusal
from kimi_prov.packaging import resources
from kimi_prov.sizing.load import NAMES

if TYPE_CHECKING:
    from pathlib import Path

_LARGEST_BYTES = 1 << 20


def read(path: Path) -> dict[str, Any]:
    """Return what a load file asks for, by the names of `Load`'s fields.

    Raises UserError for what is no load, and names each key that is wrong with its line.
    """
    fix = f"see {resources.page('guides/sizing.md')} for a load file that is whole"
    found = documents.read(path, what="a load", limit=_LARGEST_BYTES, fix=fix)
    sheet = found.yaml(fix)
    schema = schemas.load("load")
    faults = list(misfits(sheet, schema))
    if faults:
        raise refusal(found.name, faults, Written(found.text), fix=fix)
    asked = {name: sheet[name] for name in NAMES if name in sheet}
    if not asked:
        raise UserError(
            f"{found.name}: this load asks for nothing",
            fix="set users: N, or tokens_per_day: N",
        )
    return {
        name: int(value) if schema["properties"][name]["type"] == "integer" else float(value)
        for name, value in asked.items()
    }
