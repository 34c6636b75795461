"""How far a machine's clock is from that of the control machine."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# Facts have whole seconds, cut off.
_RESOLUTION_S = 1


def add_clock_offset(facts: Mapping[str, Any], asked: float, answered: float) -> dict[str, Any]:
    """Return the facts with `clock.offset_s`: by how much the machine's clock is ahead.

    Its `collected_at` was its time at some moment between `asked` and `answered`, seconds since
    1970 by the clock here: what lies between these is no difference. A time that nobody can read
    adds nothing.
    """
    try:
        told = datetime.fromisoformat(str(facts["collected_at"]).replace("Z", "+00:00")).timestamp()
    except (KeyError, ValueError, OverflowError):
        return dict(facts)
    offset = 0.0
    if told > answered:
        offset = told - answered
    elif told + _RESOLUTION_S < asked:
        offset = told + _RESOLUTION_S - asked
    return {**facts, "clock": {**(facts.get("clock") or {}), "offset_s": round(offset)}}
