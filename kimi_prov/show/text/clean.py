"""What `clean` found and removed, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract.sizes import format_bytes
from kimi_prov.show.text.host_lines import format_entry, format_head

if TYPE_CHECKING:
    from collections.abc import Mapping


def format_text(document: Mapping[str, Any]) -> str:
    """Write for each host what goes, how much it frees, and what can still be put back."""
    lines: list[str] = []
    for name, host in document["hosts"].items():
        lines += format_head(name, host.get("detail") or _describe_sum(host))
        if host.get("ok"):
            for item in host["items"]:
                lines += format_entry(item["kind"], f"{item['of']}, {format_bytes(item['bytes'])}")
            for kept in host["keeps"]:
                lines += format_entry("keeps", kept)
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _describe_sum(host: Mapping[str, Any]) -> str:
    if not host["items"]:
        return "nothing to free"
    freed = "freed" if host["removed"] else "could be freed"
    return f"{format_bytes(host['bytes'])} {freed}"
