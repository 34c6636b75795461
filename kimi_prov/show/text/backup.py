"""What `backup` and `restore` did, as text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.sizes import format_bytes, format_file_count
from kimi_prov.show.text.host_lines import entry, head

if TYPE_CHECKING:
    from collections.abc import Mapping


def backup(document: Mapping[str, Any]) -> str:
    """Write for each host where its archive is, and what it holds."""
    return _text(document, "written to", "holds")


def restore(document: Mapping[str, Any]) -> str:
    """Write what a host has now, and from where."""
    return _text(document, "restored from", "put back")


def _text(document: Mapping[str, Any], verb: str, holds: str) -> str:
    lines: list[str] = []
    for name, host in document["hosts"].items():
        lines += head(name, host["detail"])
        if host["ok"]:
            lines += _host(host, verb, holds)
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _host(host: Mapping[str, Any], verb: str, holds: str) -> list[str]:
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(host["made_unix"]))
    how = host["encrypted_with"]
    secret = f"encrypted by {how}" if how else "IN CLEAR"
    lines = [
        *entry(verb, f"{host['file']}, {format_bytes(host['bytes'])}, {secret}"),
        *entry("made", f"{made}, on {host['hostname']}"),
        *entry(holds, _content(host)),
    ]
    for text in host["left_out"]:
        lines += entry("left out", text)
    return lines


def _content(host: Mapping[str, Any]) -> str:
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
