"""What sessions have cost, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.show.text.tables import align_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEADS = ("since", "machine", "model", "hours", "cost", "starts", "answers", "idling", "ended")
_RIGHT = [_HEADS.index(head) for head in ("hours", "cost", "starts", "answers", "idling")]


def format_text(document: Mapping[str, Any]) -> str:
    """Write a session a line, and the sum below."""
    rows = document["sessions"]
    if not rows:
        return f"no session is kept in {document['bucket']}\n"
    cells = [_HEADS, *(tuple(map(clean_text.clean_row, _format_cells(row))) for row in rows)]
    lines = align_columns(cells, _RIGHT)
    many = f"{len(rows)} session{'s' if len(rows) != 1 else ''}"
    return "\n".join([*lines, "", f"{many}, ${document['usd']:.2f}"]) + "\n"


def _format_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    money = (f"${row[name]:.2f}" for name in ("usd", "starting_usd", "serving_usd", "idle_usd"))
    # Of one that was taken without a notice nobody knows more.
    ended = row["end"] or f"not told; last seen {row['until']}"
    return row["since"], row["machine"], row["model"], f"{row['hours']:g}", *money, ended
