"""A recipe that the plan does not follow needs a reason; one that it follows needs none."""

from __future__ import annotations

from typing import Any

import pytest
import recipes

RECIPE: dict[str, Any] = {
    "title": "a recipe",
    "theirs": {"--size": "0.90", "--on": True, "--other": "a", "--absent": "b"},
    "reasons": {"--other": "it is  slower", "--absent": "it is unknown"},
}


def test_a_plan_has_what_a_recipe_has_or_says_why_not() -> None:
    rows = recipes.compare(RECIPE, {"--size": "0.9", "--on": "", "--other": "c"})
    assert [(row[0], *row[2:]) for row in rows] == [
        ("`--size`", "`0.9`", "same", ""),
        ("`--on`", "set", "same", ""),
        ("`--other`", "`c`", "other", "it is slower"),
        ("`--absent`", "-", "left out", "it is unknown"),
    ]


def test_a_difference_without_a_reason_is_refused() -> None:
    with pytest.raises(ValueError, match="--size differs"):
        list(recipes.compare(RECIPE, {"--size": "0.8", "--on": ""}))
