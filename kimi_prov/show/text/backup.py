"""What `backup` and `restore` did, as text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.sizes import format_bytes, format_file_count
from kimi_prov.show.text.host_lines import format_entry, format_head

if TYPE_CHECKING:
    from collections.abc import Mapping


def format_backup(document: Mapping[str, Any]) -> str:
    """Write for each host where its archive is, and what it holds."""
    return _format_text(document, "written to", "holds")


def format_restore(document: Mapping[str, Any]) -> str:
    """Write what a host has now, and from where."""
    return _format_text(document, "restored from", "put back")


def _format_text(document: Mapping[str, Any], verb: str, holds: str) -> str:
    lines: list[str] = []
    for name, host in document["hosts"].items():
        lines += format_head(name, host["detail"])
        if host["ok"]:
            lines += _format_host(host, verb, holds)
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _format_host(host: Mapping[str, Any], verb: str, holds: str) -> list[str]:
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(host["made_unix"]))
    how = host["encrypted_with"]
    secret = f"encrypted by {how}" if how else "IN CLEAR"
    lines = [
        *format_entry(verb, f"{host['file']}, {format_bytes(host['bytes'])}, {secret}"),
        *format_entry("made", f"{made}, on {host['hostname']}"),
        *format_entry(holds, _describe_content(host)),
    ]
    for text in host["left_out"]:
        lines += format_entry("left out", text)
    return lines


def _describe_content(host: Mapping[str, Any]) -> str:
    keys, certificate, page = host["keys"], host["certificate_sha256"], host["page"]
    parts = [f"API keys {', '.join(keys)}" if keys else "no API key"]
    parts += [f"certificate {certificate[:16]}" if certificate else "no certificate"]
    parts += ["the ACME account"] if host["acme_account"] else []
    parts += [f"{host['history']} entries of the history"] if host["history"] else []
    if page:
        counted = (
            f"{page['accounts']} accounts, {page['chats']} chats, "
            f"{format_file_count(page['uploads'])}"
        )
        parts.append(f"of the page {counted}")
    return "; ".join(parts)
