"""How sure a row of the catalogue is of its source."""

from __future__ import annotations

from typing import Literal

Confidence = Literal["high", "medium", "low"]
