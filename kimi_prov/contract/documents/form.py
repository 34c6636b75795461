"""Building blocks of the document types: bounds of values, and names for common kinds.

A document is a `TypedDict`; its JSON Schema is made from it (`kimi_prov.schemas.from_types`). The
class's docstring, and the string below a key, are the descriptions there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

if sys.version_info >= (3, 11):
    from typing import NotRequired, Required
else:
    # Annotations that name these are never evaluated on a managed machine.
    NotRequired = Required = None

__all__ = ["NotRequired", "Required"]


@dataclass(frozen=True)
class Rule:
    """Limits of a value beside its type, as JSON Schema has them."""

    minimum: float | None = None
    exclusive_minimum: float | None = None
    maximum: float | None = None
    pattern: str | None = None
    format: str | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    max_items: int | None = None
    unique_items: bool | None = None
    # Still written, for older readers; code reads another key instead.
    deprecated: bool | None = None
    # Undeclared keys are allowed, in the closed form too.
    additional_properties: bool | None = None
    # Sets of keys, of which a mapping must have one completely.
    any_of_keys: tuple[tuple[str, ...], ...] | None = None


DEPRECATED = Rule(deprecated=True)
Count = Annotated[int, Rule(minimum=0)]
Positive = Annotated[int, Rule(minimum=1)]
Bytes = Annotated[int, Rule(minimum=0)]
Amount = Annotated[float, Rule(minimum=0)]
# For facts from elsewhere: no machine has as much, and results computed from it stay finite.
Whole = Annotated[int, Rule(minimum=0, maximum=1 << 60)]
PositiveWhole = Annotated[int, Rule(minimum=1, maximum=1 << 60)]
Quantity = Annotated[float, Rule(minimum=0, maximum=1 << 60)]
Sha256 = Annotated[str, Rule(pattern="^[0-9a-f]{64}$")]
Timestamp = Annotated[str, Rule(format="date-time")]
Day = Annotated[str, Rule(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
# Processors as the kernel lists them: 0-15,32-47.
CpuList = Annotated[str, Rule(pattern=r"^(\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*)?$")]
# A part of a document as an apply of whatever version wrote it: it may be of no type of today.
Recorded = Mapping[str, object]
# A job of SLURM, and which of a rendered folder's jobs it is.
JobId = Annotated[str, Rule(pattern="^[0-9]+$")]
JobName = Literal["environment", "weights", "serve", "tune", "bench", "accept"]
KeyLimit = Literal[
    "requests_per_minute", "tokens_per_minute", "requests_per_day", "tokens_per_day", "parallel"
]
WeightsHeldIn = Literal["RAM disk", "page cache", "disk", "host memory", "unknown"]
