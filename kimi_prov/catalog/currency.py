"""When a row of the catalogue was last checked, and whether its subject is available."""

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
    """The fields of every row of the catalogue beside its source.

    `checked`: the day on which its figures were last compared with the source, or written down if
    they are recalled; a file's own `checked` is the default of its rows. `status`: "announced" is
    not yet sold or served, "end-of-life" no longer.
    """

    checked: Day | None = None
    status: Status = "available"


class _Sourced(Protocol):
    @property
    def source(self) -> str: ...

    @property
    def checked(self) -> str | None: ...


def format_dated_source(row: _Sourced) -> str:
    """Return a row's source with the day on which it was last checked."""
    return f"{row.source}; checked {row.checked}" if row.checked else row.source
