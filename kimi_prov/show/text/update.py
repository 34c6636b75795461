"""What `update` installed, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.show.text.host_lines import format_entry, format_head, format_pending

if TYPE_CHECKING:
    from collections.abc import Mapping


def format_text(document: Mapping[str, Any]) -> str:
    """Write for each host what was installed, what was left, and what it took."""
    lines: list[str] = []
    for name, host in document["hosts"].items():
        lines += format_head(name, host["detail"])
        if host["ok"]:
            lines += _format_host(host)
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _format_host(host: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for row in host["installed"]:
        before = f"{row['from']} to " if row["from"] else "new: "
        lines += format_entry(row["kind"], f"{row['name']} {before}{row['to']}")
    if host["driver"]:
        lines += format_entry("driver", host["driver"])
    for row in host["left"]:
        lines += format_entry(
            "left", f"{row['name']} {row['candidate']} ({row['kind']}): {row['why']}"
        )
    if host["restarted"]:
        cut = host["requests_cut"]
        ended = f"; {cut} requests were cut" if cut else ""
        lines += format_entry(
            "restarted", f"{host['seconds_without_service']:.0f} s without service{ended}"
        )
    lines += format_pending(host)
    verified = "passed" if host["verified"] else "not run: nothing was served before"
    return [*lines, *format_entry("verify", verified)]
