"""The tune document as text: what would be tried, and what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.contract.durations import describe_duration, format_duration
from kimi_prov.show.text.lines import format_entry, format_hosts, format_stand_ins, wrap

if TYPE_CHECKING:
    from kimi_prov.contract.documents.tune import Tune, TunedHost, TuneRange, TuneRow

_TABLE = "{:<28} {:>12} {:>18} {:>8} {:<9}"
_HEAD = ("candidate", "tokens/s", "of the rounds", "gain", "result")
_BY = {
    "latency": "one request alone, with the wait for its first token",
    "throughput": "all requests together",
    "balanced": "the geometric mean of one request alone and all together",
}
_WIDTH = 28


def format_preview(document: Tune) -> str:
    """Write what a tune would try, in its order, and how long it takes."""
    return format_hosts(document, _format_preview)


def format_text(document: Tune) -> str:
    """Write every candidate with what was measured, the winner and its lines."""
    return format_hosts(document, _format_host)


def _format_preview(host: TunedHost) -> list[str]:
    if "candidates" not in host:
        return []
    lines = _format_subject(host)
    for row in host["candidates"]:
        if row["reason"]:
            lines += format_entry(f"  {row['setting']}", f"not: {row['label']}: {row['reason']}")
        else:
            estimate = _format_estimate(row["estimate"])
            lines += format_entry(f"  {row['setting']}", f"{row['label']}{estimate}")
    lines += _format_left_out(host)
    lines += ["", *format_entry("time", _describe_time(host))]
    lines += format_entry(
        "clients",
        "they get no answer from this machine from the first candidate until what was applied "
        "serves again",
    )
    return [*lines, *format_stand_ins(host)]


def _describe_time(host: TunedHost) -> str:
    """Say how long the starts take; a load takes as long as its requests."""
    starts = f"at most {host['starts']} starts of the engine"
    if host["start_s"] is None:
        return f"{starts}; {host['basis']}"
    together = describe_duration(host["starts"] * host["start_s"])
    return f"{starts}, {together} together, and the load after each; {host['basis']}"


def _format_estimate(estimate: TuneRange | None) -> str:
    if estimate is None:
        return ""
    return f" (estimated {estimate['low']:.3g} to {estimate['high']:.3g} tokens/s)"


def _format_subject(host: TunedHost) -> list[str]:
    engine = host["engine"]
    subject = f"{host['model']} on {engine['name']} {engine['version']} ({engine['variant']})"
    lines = format_entry("tuned", subject)
    rated = f"{host['purpose']}: {_BY.get(host['purpose'], '')}; {host['users']} at once"
    return [*lines, *format_entry("rated by", rated), ""]


def _format_left_out(host: TunedHost) -> list[str]:
    lines = ["", "not tried by this version:"] if host["left_out"] else []
    for row in host["left_out"]:
        lines += format_entry(f"  {row['name']}", f"{row['text']}: {row['reason']}")
    return lines


def _format_host(host: TunedHost) -> list[str]:
    if "served" not in host:
        return format_stand_ins(host)
    lines = _format_subject(host)
    lines.append(clean_text.clean_row(_TABLE.format(*_HEAD)).rstrip())
    rows = [host["served"], *host["candidates"], host["again"]]
    for row in rows:
        lines += _format_row(row) if row else []
    lines.append("")
    if host["noise"] is not None:
        lines += format_entry("noise", f"{host['noise']:.1%} between rounds of what serves")
    if host["note"]:
        lines += format_entry("note", host["note"])
    away = format_duration(host["outcome"]["seconds"])
    back = "what was applied serves again" if host["outcome"]["serves"] else "IT DOES NOT SERVE"
    lines += format_entry("clients", f"without an answer for {away}; {back}")
    lines += _format_winner(host)
    return [*lines, *_format_left_out(host), *format_stand_ins(host)]


def _format_row(row: TuneRow) -> list[str]:
    rate, gain = row["rate"], row["gain"]
    median = f"{rate['median']:.4g}" if rate else "-"
    rounds = f"{rate['low']:.4g} to {rate['high']:.4g}" if rate else "-"
    label = clean_text.clean_line(row["label"])
    first, more = (label, []) if len(label) <= _WIDTH else ("", [label])
    cells = (first, median, rounds, "-" if gain is None else f"{gain:+.1%}", row["state"])
    lines = [*more, clean_text.clean_row(_TABLE.format(*cells)).rstrip()]
    if row["reason"]:
        lines += wrap(row["reason"], "    ", "    ")
    estimate = row["estimate"]
    if estimate and rate:
        lines += wrap(
            f"estimated {estimate['expected']:.3g} ({estimate['low']:.3g} to "
            f"{estimate['high']:.3g})",
            "    ",
            "    ",
        )
    return lines


def _format_winner(host: TunedHost) -> list[str]:
    winner = host["winner"]
    if winner is None:
        return format_entry("result", "nothing better was found")
    lines = format_entry("result", f"{winner['gain']:+.1%} against what serves, by all of:")
    for name, value in sorted(winner["variables"].items()):
        lines += format_entry("", f"{name}: {value}")
    if host["written"]:
        lines += format_entry("written", f"{host['written']}; the next apply keeps it", whole=True)
    lines += ["", *(clean_text.clean_row(line) for line in (host["lines"] or "").splitlines())]
    return lines
