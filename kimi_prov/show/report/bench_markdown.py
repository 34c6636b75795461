"""A bench document as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.show.report import bench_tables
from kimi_prov.show.report.markdown import escape, format_table

if TYPE_CHECKING:
    from collections.abc import Mapping


def format_page(document: Mapping[str, Any]) -> str:
    """Write each host: its verdict, its loads, the prediction, and the last bench."""
    lines = []
    for name, host in document["hosts"].items():
        lines += [
            f"# {escape(name)}",
            "",
            escape(bench_tables.describe_verdict(host)),
            "",
        ]
        if bench_tables.has_measurements(host):
            lines += _format_measurements(host)
        lines += [f"- Stand-in: {escape(text)}" for text in host["stand_ins"]]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _format_measurements(host: Mapping[str, Any]) -> list[str]:
    lines = [f"- {label}: {escape(text)}" for label, text in bench_tables.describe_bench(host)]
    found = (
        bench_tables.build_speed_table(host),
        bench_tables.build_count_table(host),
        bench_tables.build_comparison_table(host),
        bench_tables.build_change_table(host),
    )
    for one in found:
        if one is not None:
            lines += ["", f"{escape(one.caption)}.", "", *format_table(one.head, one.rows)]
    lines.append("")
    lines += [f"- {escape(text)}" for text in bench_tables.list_unknown(host)]
    lines += [f"- Prediction: {escape(host['basis'])}"]
    differs = (host["last"] or {}).get("differs") or []
    lines += [f"- Differs from the last time: {escape(text)}" for text in differs]
    lines += [
        f"- Look at: {escape(cause['title'])}: {escape(cause['observed'])}. {escape(cause['fix'])}"
        for cause in host["look_at"]
    ]
    return lines
