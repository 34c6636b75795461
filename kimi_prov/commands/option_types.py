"""Kinds of values that options take; the command line imports this at each start."""

from __future__ import annotations

import math
from typing import Any

import click

_MOST_LOADS, _MOST_AT_ONCE = 16, 10_000
_LEAST_SIDE, _LARGEST_SIDE = 16, 8192


class FiniteRange(click.FloatRange):
    """A range that holds no `nan`: it is neither below nor above anything."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Read a number, or fail."""
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is no number.", param, ctx)


class Numbers(click.ParamType):  # type: ignore[type-arg]
    """Numbers of requests at once, with commas between them; each once, the least first."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Read them, or fail."""
        words = str(value).split(",")
        # The length bounds what is read as a number: Python's own limit is no message of ours.
        if not all(
            word.isascii() and word.isdigit() and len(word) < len("100000") for word in words
        ):
            self.fail(f"{value!r}: wanted numbers with commas between them, as 1,8,64", param, ctx)
        found = sorted({int(word) for word in words})
        if not 1 <= found[0] <= found[-1] <= _MOST_AT_ONCE or len(found) > _MOST_LOADS:
            wanted = f"wanted at most {_MOST_LOADS} numbers, from 1 to {_MOST_AT_ONCE}"
            self.fail(f"{value!r}: {wanted}", param, ctx)
        return found


class ImageSize(click.ParamType):  # type: ignore[type-arg]
    """Width and height in pixels, as 1024x768."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Read both, or fail."""
        width, _, height = str(value).lower().partition("x")
        sides = [int(word) for word in (width, height) if word.isascii() and word.isdigit()]
        if len(sides) != len(("width", "height")):
            self.fail(f"{value!r}: wanted width and height in pixels, as 1024x768", param, ctx)
        if not all(_LEAST_SIDE <= side <= _LARGEST_SIDE for side in sides):
            wanted = f"wanted {_LEAST_SIDE} to {_LARGEST_SIDE} pixels a side"
            self.fail(f"{value!r}: {wanted}", param, ctx)
        return sides[0], sides[1]
