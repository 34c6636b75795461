"""The forms of a report, by the name that `--format` has for them and by a file's suffix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


_FORMS = {
    ".html": "html",
    ".htm": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".json": "json",
}


def form_of(file: Path | None) -> str:
    """Give the form that the suffix of the report's file stands for; text where it says none."""
    return "text" if file is None else _FORMS.get(file.suffix.lower(), "text")


def renderer(form: str) -> Callable[[Mapping[str, Any]], str]:
    """Return what turns a check document into `form`: text, markdown or html.

    Only the chosen form is imported.
    """
    if form == "html":
        from kimi_prov.show.report import html  # noqa: PLC0415

        return html.check
    if form == "markdown":
        from kimi_prov.show.report import markdown  # noqa: PLC0415

        return markdown.check
    from kimi_prov.show.report import text  # noqa: PLC0415

    return text.check
