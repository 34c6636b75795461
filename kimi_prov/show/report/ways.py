"""Describe other ways to serve with the same machines, each with its condition and its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.show.report import hosts
from kimi_prov.show.text.formats import (
    Span,
    clean,
    format_duration_range,
    format_figure,
    format_money,
    read_span,
)

if TYPE_CHECKING:
    from kimi_prov.contract.documents.check import CheckedTarget as Target
    from kimi_prov.contract.documents.check import Way


def describe_ways(target: Target) -> list[str]:
    """Return a line for each way; none where the machine is best as it stands."""
    here = read_span(target["plan"]["throughput"].get("single_tok_s") or {})
    return [_describe_way(way, here) for way in target.get("ways") or ()]


def describe_other_engines(target: Target) -> list[str]:
    """Return what engines would do that this program does not install, where it decides."""
    row = next((row for row in target["findings"] if row["id"] == "engine.alternative"), None)
    if row is None or target["pace"] not in ("slow", "batch"):
        return []
    figure = str(row["required"]).partition(";")[0]
    sentence = "The speed above is with the engines that this program installs; with ik_llama.cpp "
    return [f"{sentence}{clean(figure)}; public: {clean(row['source'])}"]


def _describe_way(way: Way, here: Span) -> str:
    speeds = f"{read_span(way['single_tok_s'])} tokens/s for one person"
    if here.expected is not None and way["hosts"] == 1:
        speeds += f" (as it stands {format_figure(here.expected)})"
    if way["requests"] > 1:
        speeds += f", {read_span(way['decode_tok_s'])} for each of {way['requests']:,} at once"
    if "ttft_s" in way:
        speeds += f", first token after {format_duration_range(read_span(way['ttft_s']))}"
    if way["machines"] is None:
        return clean(f"With {way['condition']}: {speeds}")
    machines = hosts.count_machines(way["machines"], way["hosts"])
    hour = "" if way["usd_per_hour"] is None else f", {format_money(way['usd_per_hour'])} an hour"
    if way["hosts"] > 1:
        return clean(f"{machines}, {way['condition']}{hour}: {speeds}")
    return clean(f"With {way['condition']}, {machines}{hour}: {speeds}")
