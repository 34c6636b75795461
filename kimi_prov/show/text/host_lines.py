"""Lines of a host's entry in a document, for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping

WIDTH = 80
LABEL = 22


def format_head(name: str, text: str) -> list[str]:
    """Write a host's name and a line of text, underlined."""
    return [f"{clean_text.clean_line(name)}  {clean_text.clean_line(text)}".rstrip(), "-" * WIDTH]


def format_entry(label: str, text: str, width: int = LABEL, *, whole: bool = False) -> list[str]:
    """Wrap one labelled entry; further lines stand under the first. `width`: of the label.

    `whole`: a word that is longer than a line, such as a path, is not broken.
    """
    text = clean_text.clean_line(text)
    first, *rest = textwrap.wrap(
        text, WIDTH - width, break_on_hyphens=False, break_long_words=not whole
    ) or [""]
    label = clean_text.clean_row(label)
    return [f"{label:<{width - 1}} {first}".rstrip(), *(" " * width + line for line in rest)]


def format_stand_ins(host: Mapping[str, Any], width: int = LABEL) -> list[str]:
    """Write what is a stand-in in a host's document. `width`: of the label."""
    told = host.get("stand_ins") or []
    return [line for text in told for line in format_entry("stand-in", text, width)]


def format_pending(found: Mapping[str, Any]) -> list[str]:
    """Write why a host has to start again, and what of ours runs what was replaced since."""
    lines = [
        line
        for reason in found["restart_reasons"]
        for line in format_entry("restart", f"REQUIRED: {reason}")
    ]
    if found["stale_units"]:
        units = ", ".join(name.removesuffix(".service") for name in found["stale_units"])
        lines += format_entry(
            "", f"{units} run libraries that were replaced since: a restart ends that"
        )
    return lines
