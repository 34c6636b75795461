"""What `web backup` and `web restore` did, as text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.sizes import format_bytes, format_file_count
from kimi_prov.show.text.host_lines import format_entry, format_head

if TYPE_CHECKING:
    from collections.abc import Mapping


def format_backup(document: Mapping[str, Any]) -> str:
    """Write for each host where its archive is, and what it holds."""
    return _format_text(document, "written to")


def format_restore(document: Mapping[str, Any]) -> str:
    """Write what a host's page has now, and from where."""
    return _format_text(document, "restored from")


def _format_text(document: Mapping[str, Any], verb: str) -> str:
    lines: list[str] = []
    for name, host in document["hosts"].items():
        lines += format_head(name, host["detail"])
        if host["ok"]:
            lines += _format_host(host, verb)
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _format_host(host: Mapping[str, Any], verb: str) -> list[str]:
    left_out = host.get("left_out") or []
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(host["made_unix"]))
    return [
        *format_entry(verb, f"{host['file']}, {format_bytes(host['bytes'])}"),
        *format_entry("made", f"{made}, by version {host['version']} of the page"),
        *format_entry(
            "holds",
            f"{host['accounts']} accounts, {host['chats']} chats, "
            f"{format_file_count(host['uploads'])}",
        ),
        *(
            format_entry("left out", f"{format_file_count(len(left_out))} with names too long")
            if left_out
            else []
        ),
    ]
