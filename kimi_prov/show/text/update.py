"""The document of `update` as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.show.text.lines import format_entry, format_hosts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.update import Update, UpdatedHost


def format_text(document: Update) -> str:
    """Write for each host what was installed, what was left, and the time without service."""
    return format_hosts(document, _format_host)


def _format_host(host: UpdatedHost) -> list[str]:
    lines: list[str] = []
    if not host["ok"]:
        return lines
    for row in host["installed"]:
        before = f"{row['from']} to " if row["from"] else "new: "
        lines += format_entry(row["kind"], f"{row['name']} {before}{row['to']}")
    if host["driver"]:
        lines += format_entry("driver", host["driver"])
    for left in host["left"]:
        lines += format_entry(
            "left", f"{left['name']} {left['candidate']} ({left['kind']}): {left['why']}"
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


def format_pending(found: Mapping[str, Any]) -> list[str]:
    """Write why a host has to restart, and our units that run replaced libraries."""
    lines = [
        line
        for reason in found["restart_reasons"]
        for line in format_entry("restart", f"REQUIRED: {reason}")
    ]
    if found["stale_units"]:
        units = ", ".join(name.removesuffix(".service") for name in found["stale_units"])
        lines += format_entry(
            "", f"{units} run libraries that were replaced since: a restart ends that"
        )
    return lines
