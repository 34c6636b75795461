"""Plans and check documents as text, Markdown and HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def renderer(form: str) -> Callable[[Mapping[str, Any]], str]:
    """Return what turns a check document into `form`; each brings only what it needs."""

    def render(document: Mapping[str, Any]) -> str:
        if form == "html":
            from kimi_prov.report import html as page  # noqa: PLC0415
        elif form == "markdown":
            from kimi_prov.report import markdown as page  # type: ignore[no-redef]  # noqa: PLC0415
        else:
            from kimi_prov.report import summary as page  # type: ignore[no-redef]  # noqa: PLC0415
        return page.check(document)

    return render
