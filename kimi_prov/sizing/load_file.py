"""Read a file that describes a load, and report all its faults at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov import documents, schemas
from kimi_prov.documents import SourceText
from kimi_prov.errors import UserError
from kimi_prov.facts.schema_check import find_misfits, refuse_misfits
from kimi_prov.packaging import resources
from kimi_prov.sizing.load import NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MAX_BYTES = 1 << 20
_LENGTHS = ("input_tokens", "output_tokens")


def read_load(path: Path) -> dict[str, Any]:
    """Return the values of a load file by the names of `Load`'s fields.

    Raises UserError for a file that is no load; it names each wrong key with its line.
    """
    sheet, schema = _read_sheet(path)
    load = _convert_numbers({name: sheet[name] for name in NAMES if name in sheet}, schema)
    if not load:
        raise UserError(
            f"{documents.format_path_name(path)}: this load requests nothing",
            fix="set users: N, or tokens_per_day: N",
        )
    return load


def read_bench(path: Path) -> dict[str, Any]:
    """Return how a load is put on a machine: the keys of `bench`, and the lengths.

    Without numbers of requests at once, `users` is the number. Raises UserError as `read_load`.
    """
    sheet, schema = _read_sheet(path)
    own = _convert_numbers(sheet.get("bench") or {}, schema["properties"]["bench"])
    options = {**_convert_numbers({n: sheet[n] for n in _LENGTHS if n in sheet}, schema), **own}
    if sheet.get("users") and "concurrency" not in options and "rate_per_s" not in options:
        users = int(sheet["users"])
        most = schema["properties"]["bench"]["properties"]["concurrency"]["items"]["maximum"]
        if users > most:
            raise UserError(
                f"{documents.format_path_name(path)}: users: {users:,} are more than the {most:,} "
                "requests at once that a bench asks",
                fix="set bench: {concurrency: [N]}",
            )
        options["concurrency"] = [users]
    if not options:
        raise UserError(
            f"{documents.format_path_name(path)}: this load asks a bench for nothing",
            fix="set bench: {requests: N}, or input_tokens: N",
        )
    return options


def _read_sheet(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    fix = f"see {resources.find_page('guides/sizing.md')} for a load file that is whole"
    document = documents.read_document(path, what="a load", limit=_MAX_BYTES, fix=fix)
    sheet = document.yaml(fix)
    schema = schemas.load("load")
    faults = list(find_misfits(sheet, schema))
    if faults:
        raise refuse_misfits(document.name, faults, SourceText(document.text), fix=fix)
    return sheet, schema


def _convert_numbers(values: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert each number to the type in the schema: 2.0 of a spreadsheet is an integer."""
    kinds = {"integer": int, "number": float}
    converted = {}
    for name, value in values.items():
        about = schema["properties"][name]
        if about["type"] == "array":
            converted[name] = [int(item) for item in value]
        else:
            converted[name] = kinds.get(about["type"], lambda same: same)(value)
    return converted
