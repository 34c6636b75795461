"""Figures as inline SVG. Widths are percentages, so that lettering keeps its size on a phone.

Text comes from quotes and facts: everything passes through `element`, which escapes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from kimi_prov.contract.sizes import human

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kimi_prov.report.formats import Span
    from kimi_prov.report.memory_bars import Bar

_BAR_HEIGHT = 26
_ROW_HEIGHT = 30
_AXIS_HEIGHT = 22
_PLOT_HEIGHT = 190
# Beyond this ratio a linear axis would press the small values into its corner.
_LOG_FROM = 15
_MOST_TICKS = 5
# Share of the width that the dots of the context figure keep from its edges.
_EDGE = 0.07


def element(name: str, *inside: Markup, text: object = None, **attributes: object) -> Markup:
    """Give one SVG or HTML element; `class_` and `stroke_width` become class and stroke-width."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    content = escape(text) if text is not None else Markup("").join(inside)
    return Markup(f"<{name}{given}>{content}</{name}>")  # noqa: S704  (its parts were escaped)


@dataclass(frozen=True)
class Scale:
    """Maps values onto 0 to 1, linearly from nothing or by powers of ten."""

    low: float
    high: float
    log: bool

    @classmethod
    def over(cls, values: Iterable[float]) -> Scale:
        """Choose the scale that shows all of these values."""
        found = [value for value in values if value > 0] or [1.0]
        least, most = min(found), max(found)
        if most / least > _LOG_FROM:
            return cls(least / 1.4, most * 1.4, log=True)
        return cls(0.0, most * 1.08, log=False)

    def place(self, value: float) -> float:
        """Where a value stands, from 0 at the left to 1 at the right."""
        if self.log:
            value = min(max(value, self.low), self.high)
            return math.log(value / self.low) / math.log(self.high / self.low)
        return min(max(value / self.high, 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Round values to letter the axis with."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1,) if len(powers) > 4 else (1, 3) if len(powers) > 3 else (1, 2, 5)
            found = [step * 10.0**power for power in powers for step in steps]
        else:
            raw = self.high / _MOST_TICKS
            unit = 10.0 ** math.floor(math.log10(raw))
            step = next(unit * n for n in (1, 2, 5, 10) if unit * n >= raw)
            found = [step * n for n in range(_MOST_TICKS + 1)]
        return [value for value in found if self.low <= value <= self.high]


def stacked(bar: Bar) -> Markup:
    """Draw how one memory is shared out, with a line at its end where it does not fit."""
    most = max(bar.total, bar.needed, 1)
    parts, left = [], 0.0
    for part in bar.segments:
        width = part.size / most
        parts.append(
            element(
                "rect",
                element("title", text=f"{part.label}: {human(part.size)}"),
                x=_percent(left),
                y=1,
                width=_percent(width),
                height=_BAR_HEIGHT - 2,
                class_=f"part {part.kind}",
            )
        )
        left += width
    if bar.needed > bar.total:
        end = _percent(bar.total / most)
        parts.append(element("line", x1=end, x2=end, y1=0, y2=_BAR_HEIGHT, class_="limit"))
    description = ", ".join(f"{part.label} {human(part.size)}" for part in bar.segments)
    return _svg(_BAR_HEIGHT, parts, label=f"{bar.label}, {human(bar.total)}: {description}")


def swatch(kind: str) -> Markup:
    """Draw the key of a part, for the list beneath the bar."""
    part = element("rect", x=1, y=1, width=10, height=10, class_=f"part {kind}")
    return element("svg", part, width=12, height=12, class_="swatch", aria_hidden="true")


def spans(rows: Sequence[Span]) -> tuple[list[Markup], Markup, bool]:
    """Draw ranges over one scale: a picture for each row, the axis, whether it is logarithmic."""
    scale = Scale.over(
        value for row in rows for value in (row.low, row.expected, row.high) if value is not None
    )
    ticks = scale.ticks()
    return [_span(row, scale, ticks) for row in rows], _axis(scale, ticks), scale.log


def _span(row: Span, scale: Scale, ticks: Sequence[float]) -> Markup:
    middle = _ROW_HEIGHT / 2
    parts = [_grid(scale.place(tick), _ROW_HEIGHT) for tick in ticks]
    if row.low is not None and row.high is not None:
        start, end = scale.place(row.low), scale.place(row.high)
        parts.append(
            element(
                "rect",
                x=_percent(start),
                y=middle - 4,
                width=_percent(max(end - start, 0.004)),
                height=8,
                class_="range",
            )
        )
    if row.expected is not None:
        at = _percent(scale.place(row.expected))
        parts.append(element("line", x1=at, x2=at, y1=middle - 9, y2=middle + 9, class_="expected"))
    return _svg(_ROW_HEIGHT, parts)


def _axis(scale: Scale, ticks: Sequence[float]) -> Markup:
    parts = []
    for tick in ticks:
        at = scale.place(tick)
        anchor = "start" if 0 < at < 0.03 else "end" if at > 0.94 else "middle"
        parts += [
            _grid(at, 5),
            element(
                "text",
                text=f"{tick:,.10g}",
                x=_percent(at),
                y=_AXIS_HEIGHT - 5,
                text_anchor=anchor,
                class_="tick",
            ),
        ]
    return _svg(_AXIS_HEIGHT, parts)


def capacity(points: Sequence[tuple[int, int]], context: int, requests: int) -> Markup:
    """Draw the requests that fit for each length of context, both by doublings.

    `context` and `requests` are what the plan serves: a ring, above the line where not all of
    them can be so long at the same time.
    """
    shown = [*points, (context, requests)]
    left, right = (math.log2(pick(c for c, _ in shown)) for pick in (min, max))
    most = max(math.log2(n) for _, n in shown) or 1.0

    def x(tokens: float) -> float:
        return _EDGE + (1 - 2 * _EDGE) * (math.log2(tokens) - left) / ((right - left) or 1)

    def y(number: float) -> float:
        return _PLOT_HEIGHT - 34 - (_PLOT_HEIGHT - 66) * math.log2(number) / most

    parts = [
        element(
            "line",
            x1=_percent(x(before[0])),
            y1=round(y(before[1]), 1),
            x2=_percent(x(after[0])),
            y2=round(y(after[1]), 1),
            class_="curve",
        )
        for before, after in pairwise(points)
    ]
    base = _PLOT_HEIGHT - 24
    parts.append(element("line", x1="0", x2="100%", y1=base, y2=base, class_="base"))
    for tokens, number in points:
        at = _percent(x(tokens))
        parts += [
            element("circle", cx=at, cy=round(y(number), 1), r=3.5, class_="dot"),
            element(
                "text",
                text=f"{number:,}",
                x=at,
                y=round(y(number) - 10, 1),
                text_anchor="middle",
                class_="mark",
            ),
            element(
                "text", text=_short(tokens), x=at, y=base + 16, text_anchor="middle", class_="tick"
            ),
        ]
    parts.append(
        element(
            "circle",
            element("title", text=f"planned: {requests:,} requests of up to {context:,} tokens"),
            cx=_percent(x(context)),
            cy=round(y(requests), 1),
            r=7,
            class_="planned",
        )
    )
    description = ", ".join(f"{number:,} of {tokens:,}" for tokens, number in points)
    label = f"Requests that fit at once, by tokens of each: {description}"
    return _svg(_PLOT_HEIGHT, parts, label=label)


def _short(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens < 1 << 20 else f"{tokens >> 20}M"


def _grid(at: float, height: float) -> Markup:
    place = _percent(at)
    return element("line", x1=place, x2=place, y1=0, y2=height, class_="grid")


def _svg(height: int, parts: Sequence[Markup], label: str | None = None) -> Markup:
    """Wrap parts; without a label it is for the eye alone, its values stand beside it as text."""
    named: dict[str, object] = (
        {"role": "img", "aria_label": label} if label else {"aria_hidden": "true"}
    )
    return element("svg", *parts, width="100%", height=height, **named)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"
