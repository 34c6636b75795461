"""A bench document as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.show.report import bench_tables
from kimi_prov.show.report.markdown import safe, table_lines

if TYPE_CHECKING:
    from collections.abc import Mapping


def page(document: Mapping[str, Any]) -> str:
    """Give each host: how it stands, its loads, what was predicted, and the last time."""
    lines = []
    for name, host in document["hosts"].items():
        lines += [f"# {safe(name)}", "", safe(bench_tables.verdict(host)), ""]
        if bench_tables.measured(host):
            lines += _measured(host)
        lines += [f"- Stand-in: {safe(text)}" for text in host["stand_ins"]]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _measured(host: Mapping[str, Any]) -> list[str]:
    lines = [f"- {label}: {safe(text)}" for label, text in bench_tables.about(host)]
    found = (
        bench_tables.speeds(host),
        bench_tables.counts(host),
        bench_tables.compared(host),
        bench_tables.since(host),
    )
    for one in found:
        if one is not None:
            lines += ["", f"{safe(one.caption)}.", "", *table_lines(one.head, one.rows)]
    lines.append("")
    lines += [f"- {safe(text)}" for text in bench_tables.unknown(host)]
    lines += [f"- Prediction: {safe(host['basis'])}"]
    differs = (host["last"] or {}).get("differs") or []
    lines += [f"- Differs from the last time: {safe(text)}" for text in differs]
    lines += [
        f"- Look at: {safe(cause['title'])}: {safe(cause['observed'])}. {safe(cause['fix'])}"
        for cause in host["look_at"]
    ]
    return lines
