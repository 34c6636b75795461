"""The table that sets targets side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract.sizes import format_bytes
from kimi_prov.show.report import hosts
from kimi_prov.show.report.capacity import cache_tokens
from kimi_prov.show.report.cost_text import cheaper_from, hourly, over_years, price
from kimi_prov.show.report.findings import of_severity, warnings
from kimi_prov.show.report.ranking import PACE, each_of, marked
from kimi_prov.show.report.verdict import STATUS, engine, status
from kimi_prov.show.text.formats import (
    UNKNOWN,
    Cell,
    cells,
    clean,
    duration_range,
    money_range,
    span,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kimi_prov.show.report.findings import Target
    from kimi_prov.show.text.formats import Span


_Row = tuple[str, list[Cell]]


def table(targets: Sequence[Target]) -> list[_Row]:
    """Set the targets side by side: a label, and a cell for each; the best of a row is marked."""
    return [*_machines(targets), *_speeds(targets), *_needs(targets), *_costs(targets)]


def _plain(label: str, texts: Iterable[str]) -> _Row:
    return label, cells([clean(text) for text in texts])


def _best(
    targets: Sequence[Target],
    label: str,
    texts: Iterable[str],
    values: Sequence[float | None],
    pick: Callable[..., float],
) -> _Row:
    """Mark the best of those that serve."""
    mine = [
        None if status(target) == "blocked" else value
        for target, value in zip(targets, values, strict=True)
    ]
    return label, cells([clean(text) for text in texts], mine, pick)


def _machines(targets: Sequence[Target]) -> list[_Row]:
    """Give the verdict, what the machines are, and what they serve."""
    models = [target["plan"]["model"] for target in targets]
    together = [_plain("Hosts that serve together", map(hosts.joined, targets))]
    caches = [cache_tokens(target) for target in targets]
    return [
        _plain("Verdict", [STATUS[status(t)] for t in targets]),
        _plain("Pace", [PACE[t["pace"]] for t in targets]),
        _plain("Blockers", [str(len(of_severity(t, "blocker"))) for t in targets]),
        _plain("Warnings", [str(len(warnings(t))) for t in targets]),
        *(together if any(hosts.of(t) > 1 for t in targets) else []),
        _plain("Processors", map(processor, targets)),
        _plain("Memory", map(memory, targets)),
        _plain("GPUs", map(gpus, targets)),
        _plain("Engine", map(engine, targets)),
        _plain("Model, format", [f"{row['name']}, {row['weights_format']}" for row in models]),
        _plain("Context, tokens", [f"{row['context']:,}" for row in models]),
        _best(targets, "Cache, tokens", [f"{cache:,}" for cache in caches], caches, max),
    ]


def _speeds(targets: Sequence[Target]) -> list[_Row]:
    """Give the speeds and times, as far as they are estimated."""
    speeds = [target["plan"]["throughput"] for target in targets]

    def figures(
        key: str, label: str, shown: Callable[[Span], str], pick: Callable[..., float]
    ) -> _Row:
        spans = [span(row.get(key) or {}) for row in speeds]
        texts, values = marked(key, map(shown, spans), [row.expected for row in spans], targets)
        return _best(targets, label, texts, values, pick)

    many = each_of(targets)
    return [
        _plain("Requests at once, planned (N)", [f"{row['concurrency']:,}" for row in speeds]),
        figures("single_tok_s", "Decode, one request alone, tokens/s", str, max),
        figures("decode_tok_s", f"Decode, each of {many} at once, tokens/s", str, max),
        figures("aggregate_tok_s", f"Decode, all {many} together, tokens/s", str, max),
        figures("prefill_tok_s", "Prefill, tokens/s", str, max),
        figures("single_ttft_s", "Time to first token, alone", duration_range, min),
        figures("ttft_s", f"Time to first token, with {many} at once", duration_range, min),
        figures("load_s", "From start to first answer", duration_range, min),
    ]


def _needs(targets: Sequence[Target]) -> list[_Row]:
    """Give the memory, disk and power that it takes."""
    power = [target["cost"]["power_kw"] for target in targets]
    return [
        _plain("Host memory needed", map(_ram, targets)),
        _plain("RAM disk", map(_ram_disk, targets)),
        _plain("Disk needed", map(_disk, targets)),
        _best(targets, "Power", map(_power, targets), power, min),
    ]


def _costs(targets: Sequence[Target]) -> list[_Row]:
    """Give the price, and what an hour, the years and a million tokens cost."""
    costs = [target["cost"] for target in targets]
    hours = [cost["usd_per_hour"] for cost in costs]
    totals = [cost["years"]["usd"] for cost in costs]
    million = [span(cost["usd_per_million_output_tokens"]) for cost in costs]
    expected = [row.expected for row in million]
    label = "Cost of a million output tokens"
    return [
        _plain("Price", map(price, targets)),
        _best(targets, "Cost of an hour", map(hourly, targets), hours, min),
        _best(targets, "Cost over the years", map(over_years, targets), totals, min),
        _best(targets, label, map(money_range, million), expected, min),
        _plain("Cheaper than the API", map(cheaper_from, targets)),
    ]


def machine(target: Target) -> str:
    """Name processors, memory and GPUs in a line."""
    return f"{processor(target)}; {memory(target)} of memory; GPUs: {gpus(target)}"


def memory(target: Target) -> str:
    """Give the memory of the machine, of each where there are several."""
    found = format_bytes((target["facts"].get("memory") or {}).get("total_bytes"))
    return f"{hosts.of(target)} x {found}" if hosts.of(target) > 1 else found


def processor(target: Target) -> str:
    """Name the processors, of each host where there are several."""
    cpu = target["facts"].get("cpu") or {}
    name = clean(cpu.get("catalogue_name") or cpu.get("model") or UNKNOWN)
    cores = f", {cpu['cores']} cores" if cpu.get("cores") else ""
    sockets = cpu.get("sockets") or 1
    return hosts.each(target, f"{sockets} x {name}{cores}" if sockets > 1 else f"{name}{cores}")


def gpus(target: Target) -> str:
    """Name the GPUs with their number: "8 x H200 SXM", of two hosts "2 x 8 H200 SXM"."""
    counted: dict[str, int] = {}
    for gpu in target["facts"].get("gpus") or ():
        name = clean(gpu.get("model") or gpu.get("name_raw") or UNKNOWN)
        counted[name] = counted.get(name, 0) + 1
    many = hosts.of(target)
    if many > 1 and len(counted) == 1:
        name, number = next(iter(counted.items()))
        return f"{many} x {number} {name}"
    found = ", ".join(f"{number} x {name}" for name, number in counted.items())
    return (f"{many} x ({found})" if many > 1 and found else found) or "none"


def _ram(target: Target) -> str:
    found = target["plan"]["memory"]
    available = format_bytes(found["host_ram_available_bytes"])
    return hosts.on_each(target, f"{format_bytes(found['host_ram_required_bytes'])} of {available}")


def _disk(target: Target) -> str:
    return hosts.on_each(target, format_bytes(target["plan"]["disk"]["required_bytes"]))


def _ram_disk(target: Target) -> str:
    found = target["plan"]["ram_disk"]
    return hosts.on_each(target, format_bytes(found["size_bytes"])) if found["enabled"] else "no"


def _power(target: Target) -> str:
    power = target["cost"]["power_kw"]
    return UNKNOWN if power is None else f"{power:.1f} kW"
