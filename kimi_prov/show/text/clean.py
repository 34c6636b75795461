"""The document of `clean` as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract.sizes import format_bytes
from kimi_prov.show.text.lines import format_entry, format_hosts

if TYPE_CHECKING:
    from kimi_prov.contract.documents.clean import Clean, CleanedHost


def format_text(document: Clean) -> str:
    """Write for each host what is removed, how much it frees, and which rollbacks stay possible."""
    return format_hosts(document, _format_host, _describe_sum)


def _format_host(host: CleanedHost) -> list[str]:
    lines: list[str] = []
    if host.get("ok"):
        for item in host.get("items") or ():
            lines += format_entry(item["kind"], f"{item['of']}, {format_bytes(item['bytes'])}")
        for kept in host.get("keeps") or ():
            lines += format_entry("keeps", kept)
    return lines


def _describe_sum(host: CleanedHost) -> str:
    if host.get("detail"):
        return str(host["detail"])
    if not host.get("items"):
        return "nothing to free"
    freed = "freed" if host.get("removed") else "could be freed"
    return f"{format_bytes(host.get('bytes') or 0)} {freed}"
