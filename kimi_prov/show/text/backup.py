"""The documents of `backup` and `restore` as text."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kimi_prov.contract.sizes import format_bytes, format_file_count
from kimi_prov.show.text.formats import format_utc
from kimi_prov.show.text.lines import format_entry, format_hosts

if TYPE_CHECKING:
    from kimi_prov.contract.documents.backup import BackedUpHost, Backup, WebUiCounts
    from kimi_prov.contract.documents.web import WebUiContents


def format_backup(document: Backup) -> str:
    """Write for each host the path of its archive, and what it holds."""
    return format_hosts(document, partial(_format_host, "written to", "holds"))


def format_restore(document: Backup) -> str:
    """Write for each host what was restored, and from which archive."""
    return format_hosts(document, partial(_format_host, "restored from", "put back"))


def _format_host(verb: str, holds: str, host: BackedUpHost) -> list[str]:
    if not host["ok"]:
        return []
    how = host["encrypted_with"]
    secret = f"encrypted by {how}" if how else "IN CLEAR"
    lines = [
        *format_entry(verb, f"{host['file']}, {format_bytes(host['bytes'])}, {secret}"),
        *format_entry("made", f"{format_utc(host['made_unix'])}, on {host['hostname']}"),
        *format_entry(holds, _describe_content(host)),
    ]
    for text in host["left_out"]:
        lines += format_entry("left out", text)
    return lines


def _describe_content(host: BackedUpHost) -> str:
    keys, certificate, page = host["keys"], host["certificate_sha256"], host["page"]
    parts = [f"API keys {', '.join(keys)}" if keys else "no API key"]
    parts += [f"certificate {certificate[:16]}" if certificate else "no certificate"]
    parts += ["the ACME account"] if host["acme_account"] else []
    parts += [f"{host['history']} entries of the history"] if host["history"] else []
    parts += [f"of the web UI {describe_web_ui(page)}"] if page else []
    return "; ".join(parts)


def describe_web_ui(found: WebUiCounts | WebUiContents) -> str:
    """Write the counts of a web UI's archive."""
    uploads = format_file_count(found["uploads"])
    return f"{found['accounts']} accounts, {found['chats']} chats, {uploads}"
