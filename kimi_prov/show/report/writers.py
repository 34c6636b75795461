"""Finds the writer of a check document by the format of the report."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kimi_prov.contract.documents.check import Check


def find_writer(form: str, *, details: bool = True) -> Callable[[Check], str]:
    """Return the writer of a check document as text, markdown or html; import only that one.

    `details`: text has every machine in full; the other forms always have.
    """
    if form == "html":
        from kimi_prov.show.report import html  # noqa: PLC0415

        return html.render_check
    if form == "markdown":
        from kimi_prov.show.report import markdown  # noqa: PLC0415

        return markdown.format_check
    from kimi_prov.show.report import text  # noqa: PLC0415

    return partial(text.format_check, details=details)
