"""Draws the packages of kimi_prov and their imports as SVG, from the imports themselves.

A row is a layer (docs/import_graph.py). A box is a package; its caption is the first line of its
docstring. An arrow means "imports"; it is left out where a chain of other arrows implies it.

Decides: the generated pages of the docs (the diagram of the packages).
"""

from __future__ import annotations

import ast
import html
import math
import textwrap
from functools import cache
from typing import TYPE_CHECKING

from import_graph import Graph, layer, module_imports, package_imports, upward

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# Pixels.
_BOX_W, _BOX_H, _GAP_X, _GAP_Y, _LANE_W, _MARGIN = 190, 72, 24, 44, 16, 20
# Between two arrows at one edge of a box.
_STEP = 22
_LETTERS = 29
_STYLE = """
  svg { background: #fff; font-family: "DejaVu Sans", Verdana, sans-serif }
  rect { fill: #eef3fa; stroke: #34557d; rx: 5 }
  .name { font-size: 14px; font-weight: bold; fill: #14273f }
  .says { font-size: 11px; fill: #33404f }
  path { fill: none; stroke: #34557d; stroke-width: 1.3; marker-end: url(#tip) }
  #tip path { fill: #34557d; stroke: none; marker-end: none }
"""


def reduced(graph: Mapping[str, set[str]]) -> Graph:
    """Return the arrows that no chain of other arrows implies."""

    @cache
    def reach(name: str) -> frozenset[str]:
        return frozenset(graph[name]).union(*(reach(other) for other in graph[name]))

    return {
        name: {o for o in others if not any(o in reach(m) for m in others if m != o)}
        for name, others in graph.items()
    }


def packages(root: Path) -> str:
    """Return the diagram of the package at `root`. Raises ValueError for an import upwards."""
    imports = module_imports(root)
    if wrong := upward(imports):
        raise ValueError("\n".join(wrong))
    graph = package_imports(imports)
    layers = {name: layer(name) for name in sorted(graph)}
    links, lanes = _lanes(layers, reduced(graph))
    rows = _rows({**layers, **lanes}, links)
    width = max(sum(_wide(n, lanes) + _GAP_X for n in row) for row in rows) + 2 * _MARGIN
    height = 2 * _MARGIN + len(rows) * (_BOX_H + _GAP_Y) - _GAP_Y
    places = _places(rows, lanes, width)
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"',
        f'  width="{width}" height="{height}" aria-labelledby="title">',
        '<title id="title">The packages of kimi_prov; an arrow means "imports"</title>',
        f"<style>{_STYLE}</style>",
        f'<defs>{tip} orient="auto"><path d="M0,0 L8,4 L0,8 Z"/></marker></defs>',
    ]
    parts += [_arrow(points) for points in _points(list(_paths(links, lanes)), places)]
    parts += [_box(name, places[name], _caption(root, name)) for name in layers]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _lanes(layers: Mapping[str, int], arrows: Graph) -> tuple[Graph, dict[str, int]]:
    """Give an arrow over several layers a lane of its own in each layer between."""
    links: Graph = {name: set() for name in layers}
    lanes: dict[str, int] = {}
    for name in sorted(arrows):
        for other in sorted(arrows[name]):
            last = name
            for height in range(layers[name] - 1, layers[other], -1):
                lane = f"{name}>{other}@{height}"
                lanes[lane] = height
                links.setdefault(last, set()).add(lane)
                last = lane
            links.setdefault(last, set()).add(other)
    return links, lanes


def _paths(links: Graph, lanes: Mapping[str, int]) -> Iterator[list[str]]:
    for name in sorted(set(links) - set(lanes)):
        for after in sorted(links[name]):
            path = [name, after]
            while path[-1] in lanes:
                path += links[path[-1]]
            yield path


def _rows(layers: Mapping[str, int], links: Graph) -> list[list[str]]:
    """Order each layer, the topmost first, so that what is linked stands close together."""
    top = max(layers.values())
    rows = [sorted(n for n in layers if layers[n] == height) for height in range(top, -1, -1)]
    ties = {n: links.get(n, set()) | {m for m in links if n in links[m]} for n in layers}
    at = {n: (i + 1) / (len(row) + 1) for row in rows for i, n in enumerate(row)}
    for row in [*rows, *reversed(rows)] * 10:
        # fsum: the same order of boxes whatever the order of a set.
        row.sort(key=lambda n: (math.fsum(at[m] for m in ties[n]) / (len(ties[n]) or 1), n))
        at |= {n: (i + 1) / (len(row) + 1) for i, n in enumerate(row)}
    return rows


def _wide(name: str, lanes: Mapping[str, int]) -> int:
    return _LANE_W if name in lanes else _BOX_W


def _places(
    rows: list[list[str]], lanes: Mapping[str, int], width: int
) -> dict[str, tuple[int, int]]:
    """Return the middle of each box's upper edge, every row spread over the whole width."""
    places = {}
    for number, row in enumerate(rows):
        room = (width - sum(_wide(n, lanes) for n in row)) / (len(row) + 1)
        x = 0.0
        for name in row:
            x += room + _wide(name, lanes) / 2
            places[name] = (round(x), _MARGIN + number * (_BOX_H + _GAP_Y))
            x += _wide(name, lanes) / 2
    return places


def _points(
    paths: list[list[str]], places: Mapping[str, tuple[int, int]]
) -> Iterator[list[tuple[int, int]]]:
    """Yield the points of each arrow; arrows at one edge of a box stand side by side."""

    def at_edge(path: list[str], end: int, beside: int) -> tuple[int, int]:
        # In the order of where they come from or go to, so that they do not cross here.
        same = [p for p in paths if p[end] == path[end]]
        same.sort(key=lambda p: (places[p[beside]][0], p))
        x, y = places[path[end]]
        return x + round((same.index(path) - (len(same) - 1) / 2) * _STEP), y

    for path in paths:
        middle = [places[name] for name in path[1:-1]]
        yield [at_edge(path, 0, 1), *middle, at_edge(path, -1, -2)]


def _arrow(path: list[tuple[int, int]]) -> str:
    (x, y), *rest = path
    words = [f"M{x},{y + _BOX_H}"]
    for number, (to, below) in enumerate(rest):
        bend = below - _GAP_Y // 2
        words.append(f"C{x},{bend} {to},{bend} {to},{below}")
        if number < len(rest) - 1:
            words.append(f"L{to},{below + _BOX_H}")
        x = to
    return f'<path d="{" ".join(words)}"/>'


def _box(name: str, place: tuple[int, int], caption: str) -> str:
    middle, y = place
    x = middle - _BOX_W // 2
    lines = textwrap.wrap(caption, _LETTERS)[:3]
    words = [
        f'<text class="says" text-anchor="middle" x="{middle}" y="{y + 37 + 13 * row}">'
        f"{html.escape(line)}</text>"
        for row, line in enumerate(lines)
    ]
    return "\n".join(
        [
            f'<rect x="{x}" y="{y}" width="{_BOX_W}" height="{_BOX_H}"/>',
            f'<text class="name" text-anchor="middle" x="{middle}" y="{y + 19}">{name}</text>',
            *words,
        ]
    )


def _caption(root: Path, name: str) -> str:
    module = root / f"{name}.py"
    file = module if module.exists() else root / name / "__init__.py"
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.split("\n")[0].split(". ")[0].removesuffix(".")
