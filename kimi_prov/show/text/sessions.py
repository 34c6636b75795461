"""The costs of sessions as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.show.text.tables import align_columns

if TYPE_CHECKING:
    from kimi_prov.contract.documents.sessions import PaidSession, Sessions

_HEADS = ("since", "machine", "model", "hours", "cost", "starts", "answers", "idling", "ended")
_RIGHT = [_HEADS.index(head) for head in ("hours", "cost", "starts", "answers", "idling")]


def format_text(document: Sessions) -> str:
    """Write a session a line, and the sum below."""
    rows = document["sessions"]
    if not rows:
        return f"no session is kept in {document['bucket']}\n"
    cells = [_HEADS, *(tuple(map(clean_text.clean_row, _format_cells(row))) for row in rows)]
    lines = align_columns(cells, _RIGHT)
    many = f"{len(rows)} session{'s' if len(rows) != 1 else ''}"
    return "\n".join([*lines, "", f"{many}, ${document['usd']:.2f}"]) + "\n"


def _format_cells(row: PaidSession) -> tuple[str, ...]:
    costs = (row["usd"], row["starting_usd"], row["serving_usd"], row["idle_usd"])
    money = (f"${usd:.2f}" for usd in costs)
    # The end of a machine that was taken without a notice is not known.
    ended = row["end"] or f"not known; last seen {row['until']}"
    about = (row["since"], row["machine"] or "", row["model"] or "", f"{row['hours']:g}")
    return *about, *money, ended
