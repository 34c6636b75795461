"""Rows of troubles: what a log's line means, with the log that proves that it is recognised.

Decides: which troubles are known by their lines.
Held by: tests/unit/catalog/test_troubles.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kimi_prov.catalog.currency import Row
from kimi_prov.contract.troubles import Trouble


@dataclass(frozen=True, kw_only=True)
class TroubleRow(Row, Trouble):
    """A trouble, and where it was read.

    `products`, `versions`: what writes the line. `log`: lines as a file has them, which this row
    alone recognises; `log_source`: where their form was read, a source file and line at a version
    or a public report. `source`: of the meaning.
    """

    products: tuple[str, ...]
    source: str
    log: str
    log_source: str
    versions: str | None = None
