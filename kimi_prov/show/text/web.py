"""The documents of `web backup` and `web restore` as text."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kimi_prov.contract.sizes import format_bytes, format_file_count
from kimi_prov.show.text.backup import describe_web_ui
from kimi_prov.show.text.formats import format_utc
from kimi_prov.show.text.lines import format_entry, format_hosts

if TYPE_CHECKING:
    from kimi_prov.contract.documents.web import WebUi, WebUiOfHost


def format_backup(document: WebUi) -> str:
    """Write for each host the path of its archive, and what it holds."""
    return format_hosts(document, partial(_format_host, "written to"))


def format_restore(document: WebUi) -> str:
    """Write for each host what its web UI has now, and from which archive."""
    return format_hosts(document, partial(_format_host, "restored from"))


def _format_host(verb: str, host: WebUiOfHost) -> list[str]:
    if not host["ok"]:
        return []
    made = f"{format_utc(host['made_unix'])}, by version {host['version']} of the web UI"
    lines = [
        *format_entry(verb, f"{host['file']}, {format_bytes(host['bytes'])}"),
        *format_entry("made", made),
        *format_entry("holds", describe_web_ui(host)),
    ]
    left_out = host.get("left_out")
    if left_out:
        lines += format_entry("left out", f"{format_file_count(len(left_out))} with names too long")
    return lines
