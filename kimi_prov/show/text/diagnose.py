"""The document of `diagnose` as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract.sizes import format_bytes
from kimi_prov.show.text.findings import format_findings
from kimi_prov.show.text.lines import wrap

if TYPE_CHECKING:
    from collections.abc import Mapping


def format_text(document: Mapping[str, Any]) -> str:
    """Write for each host the findings, then the path of the bundle."""
    lines: list[str] = []
    for name, host in document["hosts"].items():
        lines += wrap(f"{name}: {host['detail']}", "", "  ")
        if host["findings"]:
            lines.append(format_findings(host["findings"]))
        elif host["reached"]:
            lines.append("  nothing was recognised in its logs and metrics")
        for part, why in sorted(host["missing"].items()):
            lines += wrap(f"not gathered: {part}: {why}", "  ", "    ")
        lines.append("")
    if document["bundle"]:
        size = format_bytes(document["bundle_bytes"])
        lines += wrap(f"bundle: {document['bundle']} ({size})")
        lines.append("  look through its logs before you hand it on; secrets are masked")
    return "\n".join(lines).rstrip() + "\n"
