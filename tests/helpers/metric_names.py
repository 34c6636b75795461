"""Which metrics rules, dashboards and consoles ask for."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import yaml

from kimi_prov.monitoring import CONSOLES, DASHBOARDS, RULES

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOT_NAMES = re.compile(
    r'"[^"]*"'  # texts
    r"|\{[^}]*\}|\[[^\]]*\]"  # labels, windows
    r"|\b(?:by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)"
    r"|\b[a-zA-Z_]+\s*\("  # functions
    r"|\b\d[\w.]*"  # numbers
)
_WORDS = {"and", "or", "unless", "offset", "bool"}


def asked(expression: str) -> set[str]:
    """The metrics of a PromQL expression."""
    # Aggregations have their labels before the bracket: `sum by (host) (x)`.
    rest = _NOT_NAMES.sub(" ", expression)
    while rest != (less := _NOT_NAMES.sub(" ", rest)):
        rest = less
    return (
        set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", rest)) - _WORDS - {"sum", "max", "min", "avg"}
    )


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression that is handed out, with the file that has it."""
    for file in sorted(RULES.glob("*.yml")):
        for group in yaml.safe_load(file.read_text())["groups"]:
            for rule in group["rules"]:
                yield file.name, rule["expr"]
    for file in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel.get("targets", []):
                yield file.name, target["expr"]
    page = (CONSOLES / "kimi.html").read_text()
    data = page.partition('id="rows">')[2].partition("</script>")[0]
    for row in json.loads(data):
        for panel in row["panels"]:
            for line in panel["lines"]:
                yield (
                    "kimi.html",
                    line["expr"]
                    .replace("<sel>", 'host="a"')
                    .replace("<w>", "5m")
                    .replace("<by>", "host")
                    .replace("<gpu>", "host"),
                )


def all_asked() -> dict[str, set[str]]:
    """Each metric that is asked for, and by which files."""
    found: dict[str, set[str]] = {}
    for file, expression in expressions():
        for name in asked(expression):
            found.setdefault(name, set()).add(file)
    return found
