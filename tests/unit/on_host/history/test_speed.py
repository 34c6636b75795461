"""The probe of a switch measures what streams, and judges by the one before."""

from __future__ import annotations

from typing import Any

import pytest

from kimi_prov.on_host.history import speed


def row(rate: float) -> dict[str, Any]:
    return {"decode_tok_s": rate, "first_token_s": 0.1, "tokens": 48, "rounds": 3}


@pytest.mark.parametrize(
    ("before", "after", "least", "slow"),
    [
        (row(10), row(9.5), 0.9, False),
        (row(10), row(8.5), 0.9, True),
        (row(10), row(8.5), None, False),
        (None, row(1), 0.9, False),
        (row(10), None, 0.9, True),
        (row(10), None, None, False),
    ],
)
def test_too_slow_is_told_against_the_speed_before(
    before: dict[str, Any] | None, after: dict[str, Any] | None, least: float | None, slow: bool
) -> None:
    assert bool(speed.explain_too_slow(before, after, least)) is slow


def test_the_reason_names_both_speeds_and_the_setting() -> None:
    told = speed.explain_too_slow(row(10), row(5), 0.9)
    assert told is not None
    assert all(part in told for part in ("5.0", "10.0", "50%", "kimi_upgrade_min_speed is 0.9"))
