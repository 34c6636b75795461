"""An estimate with its bounds."""

from __future__ import annotations

from typing import TypedDict

from kimi_prov.contract.documents.form import Amount


class Range(TypedDict):
    """An estimate between its bounds; null is unknown."""

    low: float | None
    expected: float | None
    high: float | None


class AmountRange(TypedDict):
    """An estimate of a figure that is never below zero; null is unknown."""

    low: Amount | None
    expected: Amount | None
    high: Amount | None
