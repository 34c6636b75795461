"""`kimi-prov/logs/v1`: a line of a journal."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kimi_prov.contract.documents.form import Rule


class LogLine(TypedDict):
    """A line of a unit's journal; `logs --format json` writes one document on each line."""

    schema: Literal["kimi-prov/logs/v1"]
    time: str
    """UTC by the host's clock, with microseconds: 2026-11-24T03:04:05.000006Z."""
    host: str
    unit: str
    priority: Annotated[int, Rule(minimum=0, maximum=7)] | None
    """syslog's: 3 is an error, 4 a warning, 6 information."""
    message: str
