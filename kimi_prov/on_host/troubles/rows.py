"""The rows as machines have them: a generated file beside this code.

The rows themselves are in kimi_prov/catalog/troubles; `make docs` writes the file.
"""

from __future__ import annotations

import json
import pkgutil
from dataclasses import asdict, fields
from functools import cache
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.troubles import Trouble

if TYPE_CHECKING:
    from collections.abc import Iterable

ROWS_FILE = "rows.json"


def pack_rows(rows: Iterable[Trouble]) -> str:
    """Return the text of the file: what recognises a trouble, and what it means, a row a line."""
    names = [one.name for one in fields(Trouble)]
    lines = []
    for row in rows:
        values = asdict(row)
        short = {name: values[name] for name in names if values[name]}
        lines.append(json.dumps(short, ensure_ascii=False, separators=(",", ":")))
    return "[\n" + ",\n".join(lines) + "\n]\n"


@cache
def read_packed_rows() -> tuple[Trouble, ...]:
    """Return the rows that came with this code."""
    content = pkgutil.get_data(__package__, ROWS_FILE)
    return tuple(_make_row(row) for row in json.loads(content or b"[]"))


def _make_row(row: Any) -> Trouble:  # noqa: ANN401  (the control machine wrote it from records)
    values: Any = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
    }
    return Trouble(**values)
