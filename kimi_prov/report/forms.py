"""The forms of a check document, by the name that `check --format` has for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def renderer(form: str) -> Callable[[Mapping[str, Any]], str]:
    """Return what turns a check document into `form`: text, markdown or html.

    Only the chosen form is imported.
    """
    if form == "html":
        from kimi_prov.report import html  # noqa: PLC0415

        return html.check
    if form == "markdown":
        from kimi_prov.report import markdown  # noqa: PLC0415

        return markdown.check
    from kimi_prov.report import text  # noqa: PLC0415

    return text.check
