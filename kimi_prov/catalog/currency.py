"""When a row of the catalogue was last checked, and whether what it names can be had."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from kimi_prov.catalog.names import TextPattern

Day = Annotated[
    str,
    TextPattern(
        "a day (YYYY-MM-DD)",
        re.compile(r"20\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"),
    ),
]
Status = Literal["announced", "available", "end-of-life"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What every row of the catalogue says of itself beside its source.

    `checked`: the day on which its figures were last held against the source, or written down where
    they are recalled; a file's own `checked` stands for the rows that name none. `status`:
    "announced" is sold or served by nobody yet, "end-of-life" by nobody any more.
    """

    checked: Day | None = None
    status: Status = "available"


class _Sourced(Protocol):
    @property
    def source(self) -> str: ...

    @property
    def checked(self) -> str | None: ...


def format_dated_source(row: _Sourced) -> str:
    """Return a row's source with the day on which it was last checked, for what a reader trusts."""
    return f"{row.source}; checked {row.checked}" if row.checked else row.source
