"""Compares what two starts of an engine answer: whether a candidate still computes the model.

Decides: whether a candidate of a tune answers as what serves.
Held by: tests/unit/planner/tuning/test_tuned_answers.py.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.tune.jobs import TokenChances

# The share of probability that may move to other tokens, on average. It separates a broken engine,
# which moves nearly all of it, from rounding in another order or format; it is no measure of how
# good answers are.
MAX_SHIFT = 0.2


def compute_shift(before: TokenChances, after: TokenChances) -> float:
    """Return the share of probability that moved, the mean over all comparable places.

    Places of a question are compared up to the first at which another token is the likeliest: what
    follows answers another text. A token that only one side lists counts as the other's least.
    """
    shifts = []
    for old, new in zip(before, after, strict=False):
        for row, other in zip(old, new, strict=False):
            if not row or not other:
                break
            shifts.append(_compare_places(row, other))
            if _find_likeliest(row) != _find_likeliest(other):
                break
    return statistics.fmean(shifts) if shifts else 1.0


def _compare_places(row: Mapping[str, float], other: Mapping[str, float]) -> float:
    # A token beyond a list is at most as likely as the last one of it.
    least, least_other = min(row.values()), min(other.values())
    moved = [
        abs(
            math.exp(min(0.0, row.get(token, least)))
            - math.exp(min(0.0, other.get(token, least_other)))
        )
        for token in {*row, *other}
    ]
    return min(1.0, sum(moved) / 2)


def _find_likeliest(row: Mapping[str, float]) -> str:
    return max(row, key=lambda token: row[token])


def explain_shift(
    before: TokenChances | None, after: TokenChances | None
) -> tuple[float | None, str | None]:
    """Return the shift and, where it is too large, why the candidate is refused."""
    if not before or not after:
        return None, None
    shift = round(compute_shift(before, after), 4)
    if shift <= MAX_SHIFT:
        return shift, None
    return shift, (
        f"it answers otherwise: {shift:.0%} of the probability of its next tokens moved, "
        f"{MAX_SHIFT:.0%} may"
    )
