"""The table that sets targets side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract.sizes import human
from kimi_prov.report.capacity import cache_tokens
from kimi_prov.report.cost_text import cheaper_from, hourly, price
from kimi_prov.report.findings import of_severity
from kimi_prov.report.formats import UNKNOWN, clean, duration_range, money_range, span
from kimi_prov.report.verdict import STATUS, engine, status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.report.check import Target


SPEEDS = (
    ("decode_tok_s", "Writing, one request", "tokens/s"),
    ("aggregate_tok_s", "Writing, all requests together", "tokens/s"),
    ("prefill_tok_s", "Reading the question", "tokens/s"),
    ("load_s", "From start to first answer", "s"),
)


def table(targets: Sequence[Target]) -> list[tuple[str, list[str]]]:
    """Set the targets side by side: a label, and a cell for each target."""
    rows: list[tuple[str, list[str]]] = [
        ("Verdict", [STATUS[status(t)] for t in targets]),
        ("Blockers", [str(len(of_severity(t, "blocker"))) for t in targets]),
        ("Warnings", [str(len(of_severity(t, "warning"))) for t in targets]),
        ("Processors", [processor(t) for t in targets]),
        ("Memory", [human((t["facts"].get("memory") or {}).get("total_bytes")) for t in targets]),
        ("GPUs", [gpus(t) for t in targets]),
        ("Engine", [engine(t) for t in targets]),
        (
            "Model, format",
            [
                f"{t['plan']['model']['name']}, {t['plan']['model']['weights_format']}"
                for t in targets
            ],
        ),
        ("Context, tokens", [f"{t['plan']['model']['context']:,}" for t in targets]),
        ("Cache, tokens", [f"{cache_tokens(t):,}" for t in targets]),
        ("Requests at once", [f"{t['plan']['throughput']['concurrency']:,}" for t in targets]),
    ]
    for key, label, unit in SPEEDS[:3]:
        cells = [str(span(t["plan"]["throughput"][key])) for t in targets]
        rows.append((f"{label}, {unit}", cells))
    loads = [span(t["plan"]["throughput"]["load_s"]) for t in targets]
    rows += [
        (SPEEDS[3][1], [duration_range(found) for found in loads]),
        ("Host memory needed", [_ram(t) for t in targets]),
        ("RAM disk", [_ram_disk(t) for t in targets]),
        ("Disk needed", [human(t["plan"]["disk"]["required_bytes"]) for t in targets]),
        ("Power", [_power(t) for t in targets]),
        ("Price", [price(t) for t in targets]),
        ("Cost of an hour", [hourly(t) for t in targets]),
        (
            "Cost of a million output tokens",
            [money_range(span(t["cost"]["usd_per_million_output_tokens"])) for t in targets],
        ),
        ("Cheaper than the API", [cheaper_from(t) for t in targets]),
    ]
    return [(label, [clean(cell) for cell in cells]) for label, cells in rows]


def processor(target: Target) -> str:
    """Name the processors."""
    cpu = target["facts"].get("cpu") or {}
    name = clean(cpu.get("catalogue_name") or cpu.get("model") or UNKNOWN)
    cores = f", {cpu['cores']} cores" if cpu.get("cores") else ""
    sockets = cpu.get("sockets") or 1
    return f"{sockets} x {name}{cores}" if sockets > 1 else f"{name}{cores}"


def gpus(target: Target) -> str:
    """Name the GPUs with their number."""
    counted: dict[str, int] = {}
    for gpu in target["facts"].get("gpus") or ():
        name = clean(gpu.get("model") or gpu.get("name_raw") or UNKNOWN)
        counted[name] = counted.get(name, 0) + 1
    return ", ".join(f"{number} x {name}" for name, number in counted.items()) or "none"


def _ram(target: Target) -> str:
    found = target["plan"]["memory"]
    available = human(found["host_ram_available_bytes"])
    return f"{human(found['host_ram_required_bytes'])} of {available}"


def _ram_disk(target: Target) -> str:
    found = target["plan"]["ram_disk"]
    return human(found["size_bytes"]) if found["enabled"] else "no"


def _power(target: Target) -> str:
    power = target["cost"]["power_kw"]
    return UNKNOWN if power is None else f"{power:.1f} kW"
