"""The pages of troubles: one for each row of the catalogue, and an index by product.

A search engine finds the message of a log here, and `diagnose --log` names the page by its id.
"""

from __future__ import annotations

import textwrap
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from markup import table

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.contract.troubles import list_effects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.catalog.troubles import TroubleRow

FOLDER = Path(__file__).resolve().parent / "troubles"
_HEAD = "<!-- Made from kimi_prov/catalog/troubles by `make docs`; do not edit. -->"
_KINDS = {
    "fault": "",
    "symptom": "This line tells what happened, not why. It counts where no cause is known.",
    "general": "The system refused a program something. It counts where nothing else is known.",
    "consequence": "This line is never the cause: look for what stands before it.",
    "harmless": "This line is harmless.",
}
_SURE = {
    "certain": "the line itself states the cause",
    "likely": "the line nearly always means this",
    "possible": "this is one of several possible causes",
}


def pages() -> dict[Path, str]:
    """Return each page and its text."""
    rows = sorted(load_catalogue().troubles, key=lambda row: row.id)
    files = {FOLDER / f"{name_page(row)}.md": "\n".join(_format_row(row)) + "\n" for row in rows}
    return {FOLDER / "README.md": "\n".join(_format_index(rows)) + "\n", **files}


def name_page(row: TroubleRow) -> str:
    """Return the name of a trouble's page."""
    return row.id.partition(".")[2].replace("_", "-")


def _format_index(rows: list[TroubleRow]) -> Iterator[str]:
    yield from ("# Troubles that logs show", "", _HEAD, "")
    yield from textwrap.wrap(
        f"`kimi-prov diagnose --log FILE` recognises these {len(rows)} messages of engines, "
        "drivers, kernels and clusters, and tells which of them is the cause. Each page has the "
        "message, its cause and what to do.",
        100,
    )
    products = sorted({row.products[0] for row in rows})
    for product in products:
        yield from ("", f"## {product}", "")
        own = [row for row in rows if row.products[0] == product]
        yield from table(
            ("trouble", "id"),
            ((f"[{_clean(row.title)}]({name_page(row)}.md)", f"`{row.id}`") for row in own),
        )


def _format_row(row: TroubleRow) -> Iterator[str]:
    yield from (f"# {_clean(row.title)}", "", _HEAD, "")
    versions = f", {row.versions}" if row.versions else ""
    yield f"`{row.id}` of {', '.join(row.products)}{versions}"
    yield from ("", "```text", *row.log.rstrip("\n").splitlines(), "```", "")
    if _KINDS[row.kind]:
        yield from (_KINDS[row.kind], "")
    yield from ("## Cause", "", *_wrap(row.cause), "")
    if row.fix:
        yield from ("## What to do", "", *_wrap(row.fix), "")
    if row.kind in ("fault", "symptom", "general"):
        yield from (f"How sure it is: {_SURE[row.confidence]}.", "")
    effects = sorted(list_effects(row.leads_to))
    if effects:
        words = ", ".join(effect.replace("_", " ") for effect in effects)
        yield from (*_wrap(f"What may follow from it: {words}."), "")
    yield from _wrap(f"Source: {row.source}; checked {row.checked}. Form: {row.log_source}.")
    yield from ("", "[All troubles](README.md)")


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(_clean(text), 100, break_long_words=False, break_on_hyphens=False)


def _clean(text: str) -> str:
    """Return text in which Markdown sees no tag, link or emphasis."""
    plain = escape(" ".join(text.split()), quote=False)
    return plain.replace("*", "\\*").replace("|", "&#124;")
