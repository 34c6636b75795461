"""The rows of a machine's own copy, which the control machine packed with this code."""

from __future__ import annotations

import json
import pkgutil
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.troubles import Trouble

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE = "rows.json"


def pack_rows(rows: Iterable[Trouble]) -> bytes:
    """Return the rows as the file of a machine: what recognises a trouble, and what it means."""
    names = [one.name for one in fields(Trouble)]
    plain = [{name: asdict(row)[name] for name in names} for row in rows]
    short = [{key: value for key, value in row.items() if value} for row in plain]
    return json.dumps(short, ensure_ascii=False, separators=(",", ":")).encode()


def read_packed_rows() -> tuple[Trouble, ...]:
    """Return the rows that came with this code; none where it runs from a checkout."""
    try:
        content = pkgutil.get_data(__package__, FILE)
    except OSError:
        return ()
    return tuple(_make_row(row) for row in json.loads(content or b"[]"))


def _make_row(row: Any) -> Trouble:  # noqa: ANN401  (the control machine wrote it from records)
    values: Any = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
    }
    return Trouble(**values)
