"""The table that compares targets side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kimi_prov.contract.gpu_rows import get_gpu_name
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.show.report import hosts
from kimi_prov.show.report.capacity import count_cache_tokens
from kimi_prov.show.report.cost_text import (
    POWER,
    describe_break_even,
    format_hourly,
    format_price,
    format_years_cost,
)
from kimi_prov.show.report.findings import filter_severity, list_warnings
from kimi_prov.show.report.ranking import PACE, describe_planned, mark_figures
from kimi_prov.show.report.verdict import STATUS, describe_engine, get_status
from kimi_prov.show.text.formats import (
    UNKNOWN,
    Cell,
    clean,
    format_duration_range,
    format_money_range,
    mark_best,
    read_span,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from kimi_prov.contract.documents.check import CheckedTarget as Target
    from kimi_prov.contract.documents.ranges import Range
    from kimi_prov.show.text.formats import Span


_Row = tuple[str, list[Cell]]


def build_table(targets: Sequence[Target], meeting: Collection[str] = ()) -> list[_Row]:
    """Return rows of a label and a cell for each target.

    The best cell of a row is marked, if its machine is `meeting` what was asked.
    """
    rows = [
        *_list_machines(targets),
        *_list_speeds(targets),
        *_list_needs(targets),
        *_list_costs(targets),
    ]
    meets = [target["name"] in meeting for target in targets]
    return [
        (
            label,
            [Cell(cell.text, cell.best and fits) for cell, fits in zip(cells, meets, strict=True)],
        )
        for label, cells in rows
    ]


def _build_row(label: str, texts: Iterable[str]) -> _Row:
    return label, mark_best([clean(text) for text in texts])


def _build_marked_row(
    targets: Sequence[Target],
    label: str,
    texts: Iterable[str],
    values: Sequence[float | None],
    pick: Callable[..., float],
) -> _Row:
    """Return a row with the best of the targets that serve marked."""
    mine = [
        None if get_status(target) in ("blocked", "hand") else value
        for target, value in zip(targets, values, strict=True)
    ]
    return label, mark_best([clean(text) for text in texts], mine, pick)


def _list_machines(targets: Sequence[Target]) -> list[_Row]:
    """Return the rows of verdict, machine and model."""
    models = [target["plan"]["model"] for target in targets]
    together = [_build_row("Hosts that serve together", map(hosts.describe_link, targets))]
    caches = [count_cache_tokens(target) for target in targets]
    return [
        _build_row("Verdict", [STATUS[get_status(t)] for t in targets]),
        _build_row("Pace", [PACE[t["pace"]] for t in targets]),
        _build_row("Blockers", [str(len(filter_severity(t, "blocker"))) for t in targets]),
        _build_row("Warnings", [str(len(list_warnings(t))) for t in targets]),
        *(together if any(hosts.count_target_hosts(t) > 1 for t in targets) else []),
        _build_row("Processors", map(describe_processor, targets)),
        _build_row("Memory", map(describe_memory, targets)),
        _build_row("GPUs", map(describe_gpus, targets)),
        _build_row("Engine", map(describe_engine, targets)),
        _build_row("Model, format", [f"{row['name']}, {row['weights_format']}" for row in models]),
        _build_row("Context, tokens", [f"{row['context']:,}" for row in models]),
        _build_marked_row(
            targets, "Cache, tokens", [f"{cache:,}" for cache in caches], caches, max
        ),
    ]


def _list_speeds(targets: Sequence[Target]) -> list[_Row]:
    """Return the rows of estimated speeds and times."""
    speeds = [target["plan"]["throughput"] for target in targets]

    def figures(
        key: str, label: str, shown: Callable[[Span], str], pick: Callable[..., float]
    ) -> _Row:
        spans = [read_span(cast("Range", row.get(key) or {})) for row in speeds]
        texts, values = mark_figures(
            key, map(shown, spans), [row.expected for row in spans], targets
        )
        return _build_marked_row(targets, label, texts, values, pick)

    many = describe_planned(targets)
    return [
        _build_row("Requests at once, planned (N)", [f"{row['concurrency']:,}" for row in speeds]),
        figures("single_tok_s", "Decode, one request alone, tokens/s", str, max),
        figures("decode_tok_s", f"Decode, each of {many} at once, tokens/s", str, max),
        figures("aggregate_tok_s", f"Decode, all {many} together, tokens/s", str, max),
        figures("prefill_tok_s", "Prefill, tokens/s", str, max),
        figures("single_ttft_s", "Time to first token, alone", format_duration_range, min),
        figures("ttft_s", f"Time to first token, with {many} at once", format_duration_range, min),
        figures("load_s", "From start to first answer", format_duration_range, min),
    ]


def _list_needs(targets: Sequence[Target]) -> list[_Row]:
    """Return the rows of needed memory, disk and power."""
    return [
        _build_row("Host memory needed", map(_describe_ram, targets)),
        _build_row("RAM disk", map(_describe_ram_disk, targets)),
        _build_row("Disk needed", map(_describe_disk, targets)),
        *(
            _build_row(
                f"{label}, kW (cooled)", [_describe_power(target, key) for target in targets]
            )
            for key, label in POWER
        ),
    ]


def _list_costs(targets: Sequence[Target]) -> list[_Row]:
    """Return the rows of price, and costs of an hour, the years and a million tokens."""
    costs = [target["cost"] for target in targets]
    hours = [cost["usd_per_hour"] for cost in costs]
    totals = [cost["years"]["usd"] for cost in costs]
    million = [read_span(cost["usd_per_million_output_tokens"]) for cost in costs]
    expected = [row.expected for row in million]
    label = "Cost of a million output tokens"
    return [
        _build_row("Price", map(format_price, targets)),
        _build_marked_row(targets, "Cost of an hour", map(format_hourly, targets), hours, min),
        _build_marked_row(
            targets, "Cost over the years", map(format_years_cost, targets), totals, min
        ),
        _build_marked_row(targets, label, map(format_money_range, million), expected, min),
        _build_row("Cheaper than the API", map(describe_break_even, targets)),
    ]


def describe_machine(target: Target) -> str:
    """Describe processors, memory and GPUs in a line."""
    parts = (describe_processor(target), f"{describe_memory(target)} of memory")
    return f"{'; '.join(parts)}; GPUs: {describe_gpus(target)}"


def describe_memory(target: Target) -> str:
    """Describe the memory of the machine, or of each of several hosts."""
    found = format_bytes((target["facts"].get("memory") or {}).get("total_bytes"))
    return (
        f"{hosts.count_target_hosts(target)} x {found}"
        if hosts.count_target_hosts(target) > 1
        else found
    )


def describe_processor(target: Target) -> str:
    """Describe the processors, or those of each of several hosts."""
    cpu = target["facts"].get("cpu") or {}
    name = clean(cpu.get("catalogue_name") or cpu.get("model") or UNKNOWN)
    cores = f", {cpu['cores']} cores" if cpu.get("cores") else ""
    sockets = cpu.get("sockets") or 1
    return hosts.describe_each(
        target, f"{sockets} x {name}{cores}" if sockets > 1 else f"{name}{cores}"
    )


def describe_gpus(target: Target) -> str:
    """Describe the GPUs with their number: "8 x H200 SXM", of two hosts "2 x 8 H200 SXM"."""
    counted: dict[str, int] = {}
    for gpu in target["facts"].get("gpus") or ():
        name = clean(get_gpu_name(gpu) or UNKNOWN)
        counted[name] = counted.get(name, 0) + 1
    many = hosts.count_target_hosts(target)
    if many > 1 and len(counted) == 1:
        name, number = next(iter(counted.items()))
        return f"{many} x {number} {name}"
    found = ", ".join(f"{number} x {name}" for name, number in counted.items())
    recorded = target["facts"].get("recorded")
    none = "not told" if recorded and "GPUs" in recorded["not_told"] else "none"
    return (f"{many} x ({found})" if many > 1 and found else found) or none


def _describe_ram(target: Target) -> str:
    found = target["plan"]["memory"]
    available = format_bytes(found["host_ram_available_bytes"] or None)
    return hosts.describe_on_each(
        target, f"{format_bytes(found['host_ram_required_bytes'])} of {available}"
    )


def _describe_disk(target: Target) -> str:
    return hosts.describe_on_each(target, format_bytes(target["plan"]["disk"]["required_bytes"]))


def _describe_ram_disk(target: Target) -> str:
    found = target["plan"]["ram_disk"]
    return (
        hosts.describe_on_each(target, format_bytes(found["size_bytes"]))
        if found["enabled"]
        else "no"
    )


def _describe_power(target: Target, key: str) -> str:
    power = target["cost"].get("power")
    if power is None:
        return UNKNOWN
    kw = float(cast("Mapping[str, float]", power)[key])
    return f"{kw:.1f} ({kw * power['cooling']:.1f})"
