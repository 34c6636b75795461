"""Whether a candidate answers as what serves."""

from __future__ import annotations

from math import log

import pytest

from kimi_prov.planner.tuning.answers import compute_shift, explain_shift


def place(**shares: float) -> dict[str, float]:
    return {token: log(share) for token, share in shares.items()}


def test_the_same_answers_have_not_moved_and_other_rounding_moves_little() -> None:
    before = [[place(Paris=0.9, London=0.05), place(is_=0.7, was=0.2)]]
    near = [[place(Paris=0.88, London=0.06), place(is_=0.69, was=0.21)]]
    assert compute_shift(before, before) == 0
    shift, refused = explain_shift(before, near)
    assert shift == pytest.approx(0.0125)
    assert refused is None


def test_other_answers_are_refused_with_the_share_that_moved() -> None:
    before = [[place(Paris=0.95, London=0.02)]]
    broken = [[place(xyz=0.9, abc=0.05)]]
    shift, refused = explain_shift(before, broken)
    assert shift is not None
    assert shift > 0.8
    assert refused is not None
    assert "answers otherwise" in refused


def test_places_behind_another_token_are_not_compared() -> None:
    before = [[place(a=0.51, b=0.49), place(c=0.99, d=0.01)]]
    after = [[place(a=0.49, b=0.51), place(e=0.99, f=0.01)]]
    assert compute_shift(before, after) == pytest.approx(0.02)


def test_an_engine_without_probabilities_is_not_compared() -> None:
    assert explain_shift(None, [[place(a=1.0)]]) == (None, None)
