"""Measured times as people read them."""

from __future__ import annotations

import pytest

from kimi_prov.contract.durations import format_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (59.96, "1:00"), (185, "3:05"), (3725, "1:02:05")],
)
def test_times_are_readable(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
