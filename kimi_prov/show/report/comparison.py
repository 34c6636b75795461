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
    from collections.abc import Callable, Sequence

    from kimi_prov.show.report.findings import Target
    from kimi_prov.show.text.formats import Span


def table(targets: Sequence[Target]) -> list[tuple[str, list[Cell]]]:
    """Set the targets side by side: a label, and a cell for each; the best of a row is marked."""
    fits = [status(t) != "blocked" for t in targets]

    def best(
        label: str, texts: list[str], values: list[float | None], pick: Callable[..., float]
    ) -> tuple[str, list[Cell]]:
        mine = [value if fit else None for value, fit in zip(values, fits, strict=True)]
        return label, cells([clean(text) for text in texts], mine, pick)

    def plain(label: str, texts: list[str]) -> tuple[str, list[Cell]]:
        return label, cells([clean(text) for text in texts])

    def figures(
        key: str, label: str, shown: Callable[[Span], str], pick: Callable[..., float]
    ) -> tuple[str, list[Cell]]:
        found = [span(t["plan"]["throughput"].get(key) or {}) for t in targets]
        texts, values = marked(key, map(shown, found), [row.expected for row in found], targets)
        return best(label, texts, values, pick)

    def speed(key: str, label: str) -> tuple[str, list[Cell]]:
        return figures(key, label, str, max)

    def time(key: str, label: str) -> tuple[str, list[Cell]]:
        return figures(key, label, duration_range, min)

    many = each_of(targets)
    costs = [t["cost"] for t in targets]
    each = [span(cost["usd_per_million_output_tokens"]) for cost in costs]
    hours: list[float | None] = [cost["usd_per_hour"] for cost in costs]
    totals: list[float | None] = [cost["years"]["usd"] for cost in costs]
    caches: list[float | None] = [cache_tokens(t) for t in targets]
    return [
        plain("Verdict", [STATUS[status(t)] for t in targets]),
        plain("Pace", [PACE[t["pace"]] for t in targets]),
        plain("Blockers", [str(len(of_severity(t, "blocker"))) for t in targets]),
        plain("Warnings", [str(len(warnings(t))) for t in targets]),
        *(
            [plain("Hosts that serve together", [hosts.joined(t) for t in targets])]
            if any(hosts.of(t) > 1 for t in targets)
            else []
        ),
        plain("Processors", [processor(t) for t in targets]),
        plain("Memory", [memory(t) for t in targets]),
        plain("GPUs", [gpus(t) for t in targets]),
        plain("Engine", [engine(t) for t in targets]),
        plain(
            "Model, format",
            [
                f"{t['plan']['model']['name']}, {t['plan']['model']['weights_format']}"
                for t in targets
            ],
        ),
        plain("Context, tokens", [f"{t['plan']['model']['context']:,}" for t in targets]),
        best("Cache, tokens", [f"{cache_tokens(t):,}" for t in targets], caches, max),
        plain(
            "Requests at once, planned (N)",
            [f"{t['plan']['throughput']['concurrency']:,}" for t in targets],
        ),
        speed("single_tok_s", "Decode, one request alone, tokens/s"),
        speed("decode_tok_s", f"Decode, each of {many} at once, tokens/s"),
        speed("aggregate_tok_s", f"Decode, all {many} together, tokens/s"),
        speed("prefill_tok_s", "Prefill, tokens/s"),
        time("single_ttft_s", "Time to first token, alone"),
        time("ttft_s", f"Time to first token, with {many} at once"),
        time("load_s", "From start to first answer"),
        plain("Host memory needed", [_ram(t) for t in targets]),
        plain("RAM disk", [_ram_disk(t) for t in targets]),
        plain("Disk needed", [_disk(t) for t in targets]),
        best("Power", [_power(t) for t in targets], [cost["power_kw"] for cost in costs], min),
        plain("Price", [price(t) for t in targets]),
        best("Cost of an hour", [hourly(t) for t in targets], hours, min),
        best("Cost over the years", [over_years(t) for t in targets], totals, min),
        best(
            "Cost of a million output tokens",
            [money_range(found) for found in each],
            [found.expected for found in each],
            min,
        ),
        plain("Cheaper than the API", [cheaper_from(t) for t in targets]),
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
