"""The confidence of a row of the catalogue in its source."""

from __future__ import annotations

from typing import Literal

Confidence = Literal["high", "medium", "low"]
