"""Types of options' values; the command line imports this at each start."""

from __future__ import annotations

import functools
import math
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from kimi_prov.contract import key_rules

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_LOADS, _MAX_AT_ONCE = 16, 10_000
_MIN_SIDE, _MAX_SIDE = 16, 8192


class FiniteRange(click.FloatRange):
    """A range without `nan`, which is neither below nor above a bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Read a number, or fail."""
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is no number.", param, ctx)


class Numbers(click.ParamType):  # type: ignore[type-arg]
    """Numbers of requests at once, separated by commas; each once, the smallest first."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Read them, or fail."""
        words = str(value).split(",")
        # Limit the length before int(), whose own limit has another message.
        if not all(
            word.isascii() and word.isdigit() and len(word) < len("100000") for word in words
        ):
            self.fail(
                f"{value!r}: expected numbers with commas between them, as 1,8,64", param, ctx
            )
        found = sorted({int(word) for word in words})
        if not 1 <= found[0] <= found[-1] <= _MAX_AT_ONCE or len(found) > _MAX_LOADS:
            wanted = f"expected at most {_MAX_LOADS} numbers, from 1 to {_MAX_AT_ONCE}"
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
            self.fail(f"{value!r}: expected width and height in pixels, as 1024x768", param, ctx)
        if not all(_MIN_SIDE <= side <= _MAX_SIDE for side in sides):
            wanted = f"expected {_MIN_SIDE} to {_MAX_SIDE} pixels a side"
            self.fail(f"{value!r}: {wanted}", param, ctx)
        return sides[0], sides[1]


class PieceSize(click.ParamType):  # type: ignore[type-arg]
    """Bytes of a piece in decimal units, as 4G: a file system with a limit of 4 GiB holds it."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return the bytes, or fail."""
        match = _PIECE.fullmatch(str(value))
        size = int(match[1]) * _UNITS[match[2]] if match else 0
        if size < _UNITS["M"]:
            self.fail(f"{value!r}: expected a size of 1M or more, as 700M or 4G", param, ctx)
        return size


_PIECE = re.compile(r"([0-9]{1,6})([MGT])")
_UNITS = {"M": 10**6, "G": 10**9, "T": 10**12}
_SPAN = re.compile(r"([0-9]{1,6})([mhd])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400}
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _parse_day(text: str) -> datetime | None:
    """Return the beginning of a day in UTC; None for another text."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        return None


class Expiry(click.ParamType):  # type: ignore[type-arg]
    """The end of a key: a time from now, the beginning of a day in UTC, or never."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return the end in the machine's form, or fail."""
        if isinstance(value, dict):
            return value
        if value == "never":
            return {"ends": None}
        span = _SPAN.fullmatch(value)
        if span and int(span[1]):
            return {"ends_in_s": int(span[1]) * _SECONDS[span[2]]}
        day = _parse_day(value) if _DAY.fullmatch(value) else None
        if day is None:
            self.fail(f"{value!r}: expected 30d, 12h, 45m, 2027-01-31 or never", param, ctx)
        return {"ends": int(day.timestamp())}


class Span(click.ParamType):  # type: ignore[type-arg]
    """A time, as 45m or 2h, in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return the seconds, or fail."""
        if isinstance(value, int):
            return value
        span = _SPAN.fullmatch(value)
        if not span or not int(span[1]):
            self.fail(f"{value!r}: expected a time as 45m, 2h or 1d", param, ctx)
        return int(span[1]) * _SECONDS[span[2]]


class Day(click.ParamType):  # type: ignore[type-arg]
    """A day of UTC, or a number of days ago."""

    name = "day"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return the day as 2026-11-24, or fail."""
        span = _SPAN.fullmatch(value)
        if span and span[2] == "d":
            ago = datetime.now(UTC) - timedelta(days=int(span[1]))
            return ago.strftime("%Y-%m-%d")
        if not _DAY.fullmatch(value) or _parse_day(value) is None:
            self.fail(f"{value!r}: expected a day as 2026-11-24, or 30d", param, ctx)
        return value


def add_key_limits(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an option for each limit of a key; it gets the given ones as a dict."""

    def gather(**options: Any) -> Any:  # noqa: ANN401
        given = {name: options.pop(name) for name in key_rules.LIMITS}
        limits = {name: number or None for name, number in given.items() if number is not None}
        return function(limits=limits, **options)

    gather = functools.wraps(function)(gather)
    for name in reversed(key_rules.LIMITS):
        what, _, span = name.partition("_per_")
        bound = f"{what} a {span}" if span else "requests at once"
        gather = click.option(
            f"--{name.replace('_', '-')}",
            name,
            type=click.IntRange(0, key_rules.MAX_LIMIT),
            metavar="N",
            help=f"At most so many {bound}.",
        )(gather)
    return gather
