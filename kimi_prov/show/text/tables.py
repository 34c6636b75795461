"""A table in the width of a terminal, or without limit: no column or text is cut."""

from __future__ import annotations

import textwrap
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

_GAP = "  "
_FURTHER = "  "
# A row with higher cells is easier to read as a block.
_HIGHEST = 3
# A space at which lines are not broken.
_TIED = "\N{NO-BREAK SPACE}"


def format_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None
) -> list[str]:
    """Write rows in `width` columns; without a width each row is one line.

    If a table does not fit, heads are broken at underscores and cells at spaces; if it still does
    not fit, each row becomes a block of its own.
    """
    table = [head, *rows]
    natural = _measure_columns(table)
    if width is None or _sum_widths(natural) <= width:
        return align_columns(table)
    # Break heads first: they appear only once.
    short = [max(_split_head(column), key=len) for column in head]
    least = _measure_columns(
        [short, *([max(cell.split(), key=len, default="") for cell in row] for row in rows)]
    )
    widths = _reduce_widths(_measure_columns([short, *rows]), least, width)
    if widths is None:
        return [line for row in rows for line in _format_block(head, row, width)]
    heads = [_wrap_head(column, room) for column, room in zip(head, widths, strict=True)]
    cells = [
        [_wrap_cell(cell, room) for cell, room in zip(row, widths, strict=True)] for row in rows
    ]
    if any(len(cell) > _HIGHEST for row in cells for cell in row):
        return [line for row in rows for line in _format_block(head, row, width)]
    return [line for row in [heads, *cells] for line in _join_cells(row, widths)]


def align_columns(
    rows: Sequence[Sequence[str]],
    right: Container[int] = (),
    widths: Sequence[int] | None = None,
) -> list[str]:
    """Align cells in columns: to the right in the columns of `right`, to the left in others.

    `widths`: of the columns, if they are not as wide as their widest cell.
    """
    measured = widths or _measure_columns(rows)
    return [
        _GAP.join(
            f"{cell:>{width}}" if number in right else f"{cell:<{width}}"
            for number, (cell, width) in enumerate(zip(row, measured, strict=True))
        ).rstrip()
        for row in rows
    ]


def break_line(text: str, width: int | None) -> list[str]:
    """Break a line at spaces, with further lines indented; a long word is not broken."""
    if width is None or len(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(
        text,
        width,
        subsequent_indent=indent + _FURTHER,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _measure_columns(table: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*table, strict=True)]


def _sum_widths(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _reduce_widths(widths: Sequence[int], least: Sequence[int], width: int) -> list[int] | None:
    """Narrow the widest columns to fit; None where even the smallest widths do not fit."""
    if _sum_widths(least) > width:
        return None
    found = list(widths)
    while _sum_widths(found) > width:
        spare = [(wide, place) for place, wide in enumerate(found) if wide > least[place]]
        found[max(spare)[1]] -= 1
    return found


def _split_head(column: str) -> list[str]:
    """Break the name of a column so that its underscores stay: memory_, gb."""
    words = column.split("_")
    return [f"{word}_" for word in words[:-1]] + words[-1:]


def _wrap_head(column: str, width: int) -> list[str]:
    found = [""]
    for piece in _split_head(column):
        if found[-1] and len(found[-1]) + len(piece) > width:
            found.append("")
        found[-1] += piece
    return found


def _wrap_cell(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def _join_cells(cells: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """Write cells of several lines side by side."""
    return align_columns([*zip_longest(*cells, fillvalue="")], widths=widths)


def _format_block(head: Sequence[str], row: Sequence[str], width: int) -> list[str]:
    """Write a row as its first cell, and below it the others; short ones are not broken."""
    told = [f"{column}: {cell}" for column, cell in zip(head[1:], row[1:], strict=True)]
    room = width - len(_GAP + _FURTHER)
    tied = [text.replace(" ", _TIED) if len(text) <= room else text for text in told]
    below = break_line(_GAP + _GAP.join(tied), width)
    return [*break_line(row[0], width), *(line.replace(_TIED, " ") for line in below)]
