"""Lines for a terminal of 80 columns: wrapped text, labelled entries, and a document's hosts."""

from __future__ import annotations

import textwrap
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WIDTH = 80
LABEL = 22


def wrap(text: str, first: str = "", rest: str = "") -> list[str]:
    """Break a line at 80 columns; words are never cut."""
    return textwrap.wrap(
        clean_text.clean_row(text),
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def format_hosts(
    document: Mapping[str, Any],
    format_host: Callable[[Any], list[str]],
    describe: Callable[[Any], str] = itemgetter("detail"),
) -> str:
    """Write each host of a document: name and description, `format_host`'s lines, an empty line."""
    lines: list[str] = []
    for name, host in document["hosts"].items():
        lines += [*format_head(name, describe(host)), *format_host(host), ""]
    return "\n".join(lines).rstrip() + "\n"


def format_head(name: str, text: str) -> list[str]:
    """Write a host's name and a line of text, underlined."""
    return [f"{clean_text.clean_line(name)}  {clean_text.clean_line(text)}".rstrip(), "-" * WIDTH]


def format_entry(label: str, text: str, width: int = LABEL, *, whole: bool = False) -> list[str]:
    """Wrap one labelled entry; further lines are aligned with the first. `width`: of the label.

    `whole`: a word longer than a line, such as a path, is not broken.
    """
    text = clean_text.clean_line(text)
    first, *rest = textwrap.wrap(
        text, WIDTH - width, break_on_hyphens=False, break_long_words=not whole
    ) or [""]
    label = clean_text.clean_row(label)
    return [f"{label:<{width - 1}} {first}".rstrip(), *(" " * width + line for line in rest)]


def format_stand_ins(host: Mapping[str, Any], width: int = LABEL) -> list[str]:
    """Write the stand-ins of a host's document. `width`: of the label."""
    told = host.get("stand_ins") or []
    return [line for text in told for line in format_entry("stand-in", text, width)]
