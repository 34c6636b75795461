"""Draw figures as inline SVG. Widths are percentages, so that text keeps its size on a phone.

Text comes from quotes and facts: everything passes through `build_element`, which escapes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from kimi_prov.contract.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kimi_prov.show.report.memory_bars import Bar
    from kimi_prov.show.report.plots import Level, Line, Point

_BAR_HEIGHT = 26
_PLOT_HEIGHT = 190
# Beyond this ratio a linear axis would show the small values too close together.
_LOG_FROM = 15
_MAX_TICKS = 5
# A plot of lines: room above its field, the field, room for the text below, in points.
_TOP, _FIELD, _BOTTOM = 14, 260, 24
# Lines that have a colour; readers cannot distinguish more colours.
_COLOURED = 8
# The height of a line of text, and the distance of two ends, as a share of the width, below which
# their numbers overlap.
_LETTERING, _NEAR, _SETTLING = 14, 0.05, 40
# How far a number reaches from the end of its line, as a share of the width on a phone.
_NUMBER_WIDTH = 0.08
# A level's name: its share of the width on a wide page and on a phone, and where it may begin.
_LEVEL_WIDTH, _LEVEL_WIDTH_PHONE = 0.18, 0.34
_LEVEL_STARTS = (0.01, 0.14, 0.2, 0.28, 0.42, 0.55, 0.68, 0.8)
_STEADY = "non-scaling-stroke"
# Margin of the dots of the context figure, as a share of the width.
_EDGE = 0.07


def build_element(name: str, *inside: Markup, text: object = None, **attributes: object) -> Markup:
    """Return an SVG or HTML element; `class_` and `stroke_width` become class and stroke-width."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    content = escape(text) if text is not None else Markup("").join(inside)
    return Markup(f"<{name}{given}>{content}</{name}>")  # noqa: S704  (its parts were escaped)


@dataclass(frozen=True)
class Scale:
    """Maps values onto 0 to 1, linearly from 0 or by powers of ten."""

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
        """Return the position of a value, from 0 at the left to 1 at the right."""
        if self.log:
            value = min(max(value, self.low), self.high)
            return math.log(value / self.low) / math.log(self.high / self.low)
        return min(max(value / self.high, 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Return round values for the axis."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1,) if len(powers) > 4 else (1, 3) if len(powers) > 3 else (1, 2, 5)
            found = [step * 10.0**power for power in powers for step in steps]
        else:
            raw = self.high / _MAX_TICKS
            unit = 10.0 ** math.floor(math.log10(raw))
            step = next(unit * n for n in (1, 2, 5, 10) if unit * n >= raw)
            found = [step * n for n in range(_MAX_TICKS + 1)]
        return [value for value in found if self.low <= value <= self.high]


def draw_stacked_bar(bar: Bar) -> Markup:
    """Draw the parts of one memory, with a line at its end if they do not fit."""
    most = max(bar.total, bar.needed, 1)
    parts, left = [], 0.0
    for part in bar.segments:
        width = part.size / most
        parts.append(
            build_element(
                "rect",
                build_element("title", text=f"{part.label}: {format_bytes(part.size)}"),
                x=_format_percent(left),
                y=1,
                width=_format_percent(width),
                height=_BAR_HEIGHT - 2,
                class_=f"part {part.kind}",
            )
        )
        left += width
    if bar.needed > bar.total:
        end = _format_percent(bar.total / most)
        parts.append(build_element("line", x1=end, x2=end, y1=0, y2=_BAR_HEIGHT, class_="limit"))
    description = ", ".join(f"{part.label} {format_bytes(part.size)}" for part in bar.segments)
    return _build_svg(
        _BAR_HEIGHT, parts, label=f"{bar.label}, {format_bytes(bar.total)}: {description}"
    )


def draw_swatch(kind: str) -> Markup:
    """Draw the key of a part, for the list below the bar."""
    part = build_element("rect", x=1, y=1, width=10, height=10, class_=f"part {kind}")
    return build_element("svg", part, width=12, height=12, class_="swatch", aria_hidden="true")


@dataclass(frozen=True)
class Axis:
    """A scale with its labelled ticks."""

    scale: Scale
    marks: tuple[tuple[float, str], ...]


def choose_axis(values: Iterable[float], unit: str = "") -> Axis:
    """Choose an axis that shows these values; `unit` comes before each label."""
    scale = Scale.over(values)
    return Axis(scale, tuple((tick, f"{unit}{tick:,.10g}") for tick in scale.ticks()))


def choose_doubling_axis(values: Iterable[float]) -> Axis:
    """Choose an axis of powers of two, from the smallest value to the largest."""
    found = sorted(set(values)) or [1.0]
    high = found[-1] if found[-1] > found[0] else 2 * found[0]
    scale = Scale(found[0], high, log=True)
    steps = [2.0**n for n in range(31) if found[0] <= 2**n <= high]
    return Axis(scale, tuple((step, f"{step:,.0f}") for step in steps))


def build_share_axis() -> Axis:
    """Return the axis of a share, from 0 to 100 %."""
    return Axis(Scale(0.0, 1.0, log=False), tuple((n / 4, f"{25 * n} %") for n in range(5)))


def draw_lines(
    rows: Sequence[Line],
    x: Axis,
    y: Axis,
    *,
    label: str,
    levels: Sequence[Level] = (),
    rings: Mapping[int, Point] | None = None,
    front: Sequence[Point] = (),
) -> Markup:
    """Draw a line for each machine, each with its number at its right end.

    The first few have colours and ranges, the others are grey. `levels` are horizontal lines,
    `rings` mark a point of a line by its number, `front` is a broad line behind all others.
    """

    def place(point: Point) -> tuple[float, float]:
        return x.scale.place(point.x), _compute_height(y, point.y)

    parts = _draw_frame(x, y)
    parts += [_draw_level(level, y) for level in levels]
    paths = [[place(point) for point in row.points] for row in rows]
    ends = [max((place(point) for point in row.points), key=lambda at: at[0]) for row in rows]
    heights = _move_apart([(across, _TOP + down * _FIELD) for across, down in ends])
    numbers = _outline_numbers(ends, heights)
    letters = [_draw_level_name(level, y, paths, numbers) for level in levels]
    drawn = [_draw_path("front", [place(point) for point in front])] if len(front) > 1 else []
    for row in reversed(rows):
        if choose_tone(row):
            drawn.append(_draw_band(row, x, y))
        drawn.append(
            _draw_path(f"curve tone{choose_tone(row)}", [place(point) for point in row.points])
        )
    parts.append(
        build_element(
            "svg",
            *drawn,
            x=0,
            y=_TOP,
            width="100%",
            height=_FIELD,
            viewBox="0 0 1000 1000",
            preserveAspectRatio="none",
            class_="field",
            aria_hidden="true",
        )
    )
    for row, end, height in zip(rows, ends, heights, strict=True):
        parts += [
            _draw_dot(place(point), 2.5, f"dot tone{choose_tone(row)}") for point in row.points
        ]
        parts += _draw_end(row, end, height)
    parts += letters
    for row in rows:
        ring = (rings or {}).get(row.number)
        if ring is not None:
            parts.append(_draw_dot(place(ring), 6, "planned"))
    return _build_svg(_TOP + _FIELD + _BOTTOM, parts, label=label, class_="plot")


def choose_tone(row: Line) -> int:
    """Return the number of a machine's colour, the same in every plot; 0 is grey."""
    return row.number if row.number <= _COLOURED else 0


def _draw_frame(x: Axis, y: Axis) -> list[Markup]:
    parts = []
    for value, text in y.marks:
        height = round(_TOP + _compute_height(y, value) * _FIELD, 1)
        parts += [
            build_element("line", x1="0", x2="100%", y1=height, y2=height, class_="grid"),
            build_element("text", text=text, x=-7, y=height + 4, text_anchor="end", class_="tick"),
        ]
    base = _TOP + _FIELD
    parts.append(build_element("line", x1="0", x2="100%", y1=base, y2=base, class_="base"))
    for value, text in x.marks:
        at = _format_percent(x.scale.place(value))
        parts += [
            build_element("line", x1=at, x2=at, y1=base, y2=base + 4, class_="base"),
            build_element(
                "text", text=text, x=at, y=base + 17, text_anchor="middle", class_="tick"
            ),
        ]
    return parts


def _draw_level(level: Level, y: Axis) -> Markup:
    at = _compute_level_height(level, y)
    return build_element("line", x1="0", x2="100%", y1=at, y2=at, class_="level")


def _outline_numbers(
    ends: Sequence[tuple[float, float]], heights: Sequence[float]
) -> list[list[tuple[float, float]]]:
    """Return the upper and lower edge of each number, as lines."""
    return [
        [(across + aside, (height + edge - _TOP) / _FIELD) for aside in (0.0, _NUMBER_WIDTH)]
        for (across, _), height in zip(ends, heights, strict=True)
        for edge in (-_LETTERING / 2, _LETTERING / 2)
    ]


def _draw_level_name(
    level: Level,
    y: Axis,
    paths: Sequence[Sequence[tuple[float, float]]],
    numbers: Sequence[Sequence[tuple[float, float]]],
) -> Markup:
    """Write the name of a level beside all numbers, and where the fewest lines cross it."""
    height = _compute_level_height(level, y)

    def measure_conflict(start: float) -> tuple[int, int]:
        return (
            _count_crossings(start, _LEVEL_WIDTH_PHONE, height, numbers),
            _count_crossings(start, _LEVEL_WIDTH, height, paths),
        )

    start = min(_LEVEL_STARTS, key=measure_conflict)
    return build_element(
        "text", text=level.label, x=_format_percent(start), y=height - 5, class_="mark halo"
    )


def _count_crossings(
    start: float, width: float, height: float, paths: Sequence[Sequence[tuple[float, float]]]
) -> int:
    """Count the lines that pass a name above a height; start and width are shares of the page."""
    top, bottom = ((height - room - _TOP) / _FIELD for room in (_LETTERING + 4, -4))
    return sum(
        any(
            _cross(before, after, (start, start + width), (top, bottom))
            for before, after in pairwise(path)
        )
        for path in (sorted(path) for path in paths)
    )


def _cross(
    before: tuple[float, float],
    after: tuple[float, float],
    across: tuple[float, float],
    down: tuple[float, float],
) -> bool:
    """Whether a piece of a line passes a rectangle."""
    left, right = max(before[0], across[0]), min(after[0], across[1])
    if left > right:
        return False
    slope = (after[1] - before[1]) / ((after[0] - before[0]) or 1.0)
    ends = [before[1] + slope * (at - before[0]) for at in (left, right)]
    return min(ends) <= down[1] and max(ends) >= down[0]


def _compute_level_height(level: Level, y: Axis) -> float:
    return round(_TOP + _compute_height(y, level.y) * _FIELD, 1)


def _draw_band(row: Line, x: Axis, y: Axis) -> Markup:
    """Draw the range of a line, if it has one."""
    known = [(p.x, p.low, p.high) for p in row.points if p.low is not None and p.high is not None]
    if len(known) < 2:
        return Markup()
    upper = [(x.scale.place(at), _compute_height(y, high)) for at, _, high in known]
    lower = [(x.scale.place(at), _compute_height(y, low)) for at, low, _ in reversed(known)]
    return build_element(
        "polygon", points=_format_points([*upper, *lower]), class_=f"band tone{choose_tone(row)}"
    )


def _draw_path(kind: str, places: Sequence[tuple[float, float]]) -> Markup:
    return build_element(
        "polyline", points=_format_points(places), vector_effect=_STEADY, class_=kind
    )


def _format_points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{1000 * across:.0f},{1000 * down:.0f}" for across, down in places)


def _draw_dot(place: tuple[float, float], radius: float, kind: str) -> Markup:
    across, down = place
    return build_element(
        "circle",
        cx=_format_percent(across),
        cy=round(_TOP + down * _FIELD, 1),
        r=radius,
        class_=kind,
    )


def _draw_end(row: Line, end: tuple[float, float], height: float) -> list[Markup]:
    """Write a line's number at its right end; the key below the plot has the whole name."""
    text = build_element(
        "text",
        text=row.number,
        x=_format_percent(end[0]),
        y=round(height + 4, 1),
        dx=9,
        class_="mark halo number",
    )
    return [_draw_dot(end, 4, f"dot tone{choose_tone(row)}"), text]


def _move_apart(places: Sequence[tuple[float, float]]) -> list[float]:
    """Move labels that overlap up or down: (share of the width, y) to new y."""
    order = sorted(range(len(places)), key=lambda n: places[n][1])
    heights = [place[1] for place in places]
    for _ in range(_SETTLING):
        # Not only neighbours: between two of them a third may stand far to the side.
        for first, second in combinations(order, 2):
            lack = _LETTERING - (heights[second] - heights[first])
            if lack > 0 and abs(places[first][0] - places[second][0]) < _NEAR:
                heights[first] -= lack / 2
                heights[second] += lack / 2
    return heights


def _compute_height(y: Axis, value: float) -> float:
    return 1 - y.scale.place(value)


def _build_label(text: str, x: str, y: float, kind: str) -> Markup:
    return build_element("text", text=text, x=x, y=y, text_anchor="middle", class_=kind)


def draw_capacity(points: Sequence[tuple[int, int]], context: int, requests: int) -> Markup:
    """Draw the requests that fit for each length of context, both on axes of doublings.

    `context` and `requests` of the plan are a ring. It is above the line if not all requests can
    have that length at the same time.
    """
    shown = [*points, (context, requests)]
    left, right = (math.log2(pick(c for c, _ in shown)) for pick in (min, max))
    most = max(math.log2(n) for _, n in shown) or 1.0

    def x(tokens: float) -> float:
        return _EDGE + (1 - 2 * _EDGE) * (math.log2(tokens) - left) / ((right - left) or 1)

    def y(number: float) -> float:
        return _PLOT_HEIGHT - 34 - (_PLOT_HEIGHT - 66) * math.log2(number) / most

    parts = [
        build_element(
            "line",
            x1=_format_percent(x(before[0])),
            y1=round(y(before[1]), 1),
            x2=_format_percent(x(after[0])),
            y2=round(y(after[1]), 1),
            class_="curve",
        )
        for before, after in pairwise(points)
    ]
    base = _PLOT_HEIGHT - 24
    parts.append(build_element("line", x1="0", x2="100%", y1=base, y2=base, class_="base"))
    for tokens, number in points:
        at, height = _format_percent(x(tokens)), y(number)
        parts += [
            build_element("circle", cx=at, cy=round(height, 1), r=3.5, class_="dot"),
            _build_label(f"{number:,}", at, round(height - 10, 1), "mark"),
            _build_label(_shorten_tokens(tokens), at, base + 16, "tick"),
        ]
    parts.append(
        build_element(
            "circle",
            build_element(
                "title", text=f"planned: {requests:,} requests of up to {context:,} tokens"
            ),
            cx=_format_percent(x(context)),
            cy=round(y(requests), 1),
            r=7,
            class_="planned",
        )
    )
    description = ", ".join(f"{number:,} of {tokens:,}" for tokens, number in points)
    label = f"Requests that fit at once, by tokens of each: {description}"
    return _build_svg(_PLOT_HEIGHT, parts, label=label)


def _shorten_tokens(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens < 1 << 20 else f"{tokens >> 20}M"


def _build_svg(
    height: int, parts: Sequence[Markup], *, label: str, class_: str | None = None
) -> Markup:
    return build_element(
        "svg", *parts, width="100%", height=height, role="img", aria_label=label, class_=class_
    )


def _format_percent(share: float) -> str:
    return f"{100 * share:.2f}%"
