"""A machine's clock beside ours: what the way there and back takes is no difference."""

from __future__ import annotations

import pytest

from kimi_prov.facts import clock

# 2026-01-02 03:04:05 UTC.
NOW = 1767323045


@pytest.mark.parametrize(
    ("asked", "answered", "offset"),
    [
        (NOW - 3, NOW + 20, 0),
        (NOW + 0.9, NOW + 0.95, 0),
        (NOW + 3601, NOW + 3620, -3600),
        (NOW - 3620, NOW - 3600, 3600),
    ],
)
def test_only_what_lies_outside_the_question_counts(
    asked: float, answered: float, offset: int
) -> None:
    facts = {"collected_at": "2026-01-02T03:04:05Z", "clock": {"synchronized": True}}
    found = clock.add_clock_offset(facts, asked, answered)
    assert found["clock"] == {"synchronized": True, "offset_s": offset}


@pytest.mark.parametrize("told", ["soon", "", None, "9999-99-99T00:00:00Z"])
def test_a_time_that_nobody_can_read_adds_nothing(told: object) -> None:
    facts = {"collected_at": told}
    assert clock.add_clock_offset(facts, NOW, NOW) == facts
