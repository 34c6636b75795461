"""Format numbers, money, times and text for all forms of the report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.contract.durations import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kimi_prov.contract.documents.ranges import Range


UNKNOWN = "unknown"


@dataclass(frozen=True)
class Span:
    """A range with its expected value; all None if unknown."""

    low: float | None
    expected: float | None
    high: float | None

    def __str__(self) -> str:
        if self.expected is None:
            return UNKNOWN
        if self.low is None or self.high is None or self.low == self.high:
            return format_figure(self.expected)
        low, high = format_figure(self.low), format_figure(self.high)
        return f"{format_figure(self.expected)} ({low} to {high})"


@dataclass(frozen=True)
class Cell:
    """The text of a cell of a table, and whether it is the best of its row or column."""

    text: str
    best: bool = False


def mark_best(
    texts: Sequence[str],
    values: Sequence[float | None] = (),
    pick: Callable[[Iterable[float]], float] | None = None,
) -> list[Cell]:
    """Return cells with the best one, chosen by `pick` (min or max), marked if values differ.

    A value of None takes no part.
    """
    known = [value for value in values if value is not None]
    if pick is None or len(set(known)) < 2:
        return [Cell(text) for text in texts]
    best = pick(known)
    return [Cell(text, value == best) for text, value in zip(texts, values, strict=True)]


def clean(value: object) -> str:
    """Return foreign text clean and on one line, a list with commas."""
    if isinstance(value, (list, tuple)):
        value = ", ".join(str(item) for item in value)
    return clean_text.clean_line(value)


def format_sentence(value: object) -> str:
    """Return clean text that ends with a full stop."""
    text = clean(value)
    return text if text.endswith((".", "!", "?")) else text + "."


def format_figure(value: float | None) -> str:
    """Write a number with three significant figures and thousands separators."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    digits = max(0, 2 - _get_magnitude(value))
    return (
        f"{round(value, 2 - _get_magnitude(value)):,.{digits}f}"
        if abs(value) < 1e15
        else f"{value:g}"
    )


def format_money(value: float | None) -> str:
    """Write dollars: cents below a hundred, whole dollars above."""
    if value is None:
        return UNKNOWN
    return f"${value:,.0f}" if abs(value) >= 100 else f"${value:,.2f}"


def format_short_money(value: float | None) -> str:
    """Write dollars in about six characters at most, with k and M."""
    if value is None:
        return UNKNOWN
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"${format_figure(value / (size if letter != 'k' else 1e3))}{letter}"
    return format_money(value)


def format_rounded_duration(seconds: float | None) -> str:
    """Write an estimated time: tenths below ten seconds, whole minutes above two minutes."""
    if seconds is None:
        return UNKNOWN
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def format_years(value: float) -> str:
    """Write a number of years."""
    return f"{value:g} year{'s' * (value != 1)}"


def format_share(value: float) -> str:
    """Write a share as a percentage, with more digits near 0."""
    return f"{value:.0%}" if value >= 0.1 else f"{100 * value:.2g}%"


def format_utc(seconds: float) -> str:
    """Write a time given in seconds since 1970."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def describe_engine(engine: Mapping[str, object], built: str = "") -> str:
    """Write an engine's name, version and variant. `built`: the words before the variant."""
    return f"{engine['name']} {engine['version']} ({engine['variant']}{built})"


def describe_uptime(seconds: float | None) -> str:
    """Write the time for which something is up; "" if unknown."""
    return "" if seconds is None else f" for {format_duration(seconds)}"


def read_span(values: Range | Mapping[str, float | None]) -> Span:
    """Read {low, expected, high}."""
    return Span(values.get("low"), values.get("expected"), values.get("high"))


def format_duration_range(found: Span) -> str:
    """Write a range of times."""
    if found.expected is None or found.low is None or found.high is None:
        return format_rounded_duration(found.expected)
    low, high = format_rounded_duration(found.low), format_rounded_duration(found.high)
    return f"{format_rounded_duration(found.expected)} ({low} to {high})"


def format_money_range(found: Span) -> str:
    """Write a range of dollars."""
    if found.expected is None:
        return UNKNOWN
    if found.low is None or found.high is None:
        return format_money(found.expected)
    return (
        f"{format_money(found.expected)} ({format_money(found.low)} to {format_money(found.high)})"
    )


def _get_magnitude(value: float) -> int:
    return int(f"{abs(value):.2e}".partition("e")[2])
