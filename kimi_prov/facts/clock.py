"""How far a machine's clock differs from that of the control machine."""

from __future__ import annotations

import copy
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts import Facts, ProbeAnswer

AnyFacts = TypeVar("AnyFacts", "Facts", "ProbeAnswer")
# Facts have whole seconds, rounded down.
_RESOLUTION_S = 1


def add_clock_offset(facts: AnyFacts, sent_at: float, answered: float) -> AnyFacts:
    """Return the facts with `clock.offset_s`: the seconds that the machine's clock is ahead.

    `collected_at` is its time at some moment between `sent_at` and `answered`, seconds since 1970
    by the local clock: a time between these two is no difference. An invalid time adds nothing.
    """
    try:
        machine_time = datetime.fromisoformat(
            str(facts["collected_at"]).replace("Z", "+00:00")
        ).timestamp()
    except (KeyError, ValueError, OverflowError):
        return facts
    offset = 0.0
    if machine_time > answered:
        offset = machine_time - answered
    elif machine_time + _RESOLUTION_S < sent_at:
        offset = machine_time + _RESOLUTION_S - sent_at
    result = copy.copy(facts)
    result["clock"] = {**facts.get("clock", {}), "offset_s": round(offset)}
    return result
