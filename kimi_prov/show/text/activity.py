"""A host's present activity as lines: its engines, GPUs and memory, and the last hang.

Decides: what `status` samples of this moment (its text).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract.durations import format_duration
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.show.text.lines import format_entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.status.activity import EngineNow, GpuNow, NowStatus
    from kimi_prov.contract.documents.status.machine import WatchdogStatus


def format_lines(host: Mapping[str, Any], *, known: bool = False) -> list[str]:
    """Write the activity in a host's document; an earlier version has none.

    `known`: leave out what the machine cannot report.
    """
    found = host.get("now")
    told = _format_now(found, known=known) if found else []
    return [*told, *format_watchdog(host.get("watchdog"))]


def _format_now(found: NowStatus, *, known: bool) -> list[str]:
    told: list[str] = []
    for engine in found["engines"]:
        told += format_entry(f"now, engine {engine['index']}", _format_engine(engine))
    for gpu in found["gpus"] or ():
        told += format_entry(f"  GPU {gpu['index']}", _format_gpu(gpu))
    if found["gpus_problem"]:
        told += format_entry("  GPUs", f"not told: {found['gpus_problem']}")
    read, write = found["memory_read_bytes_per_s"], found["memory_write_bytes_per_s"]
    if read is not None and write is not None:
        told += format_entry(
            "  memory moves", f"{read / 1e9:.1f} GB/s read, {write / 1e9:.1f} GB/s written"
        )
    elif not known:
        told += format_entry("  memory moves", f"not known: {found['memory_problem']}")
    share = found["amx_busy_share"]
    if share is not None:
        told += format_entry("  AMX", f"busy in {_format_share(share)} of all cycles")
    elif not known:
        told += format_entry("  AMX", f"not told: {found['amx_problem']}")
    return told


def _format_engine(engine: EngineNow) -> str:
    at_proxy = engine["requests_at_proxy"]
    asked = f"; {at_proxy} at the proxy" if at_proxy is not None else ""
    if not engine["answers"]:
        return f"has no metrics{asked}"
    speeds = [
        f"{speed:g} tokens/s {what}"
        for speed, what in ((engine["decode_tok_s"], "out"), (engine["prefill_tok_s"], "in"))
        if speed is not None
    ]
    cache = engine["cache_used_share"]
    used = [f"cache {_format_share(cache)} in use"] if cache is not None else []
    rest = ", ".join([*speeds, *used])
    return f"{engine['running']} running, {engine['waiting']} waiting, {rest}{asked}"


def _format_gpu(gpu: GpuNow) -> str:
    parts = [f"{_format_share(gpu['busy_share'])} busy"] if gpu["busy_share"] is not None else []
    if gpu["memory_used_bytes"] is not None and gpu["memory_total_bytes"]:
        parts.append(
            f"{format_bytes(gpu['memory_used_bytes'])} of {format_bytes(gpu['memory_total_bytes'])}"
        )
    if gpu["power_w"] is not None:
        limit = f" of {gpu['power_limit_w']:.0f}" if gpu["power_limit_w"] is not None else ""
        parts.append(f"{gpu['power_w']:.0f}{limit} W")
    degrees = [
        f"{gpu[key]:.0f}"
        for key in ("temperature_c", "memory_temperature_c")
        if gpu[key] is not None
    ]
    if degrees:
        parts.append(f"{' and '.join(degrees)} °C")
    if gpu["clock_mhz"] is not None:
        most = f" of {gpu['clock_max_mhz']:.0f}" if gpu["clock_max_mhz"] is not None else ""
        parts.append(f"{gpu['clock_mhz']:.0f}{most} MHz")
    if gpu["throttled"]:
        parts.append(f"SLOWED DOWN: {', '.join(gpu['throttled'])}")
    if gpu["ecc_uncorrected"]:
        parts.append(f"{gpu['ecc_uncorrected']} UNCORRECTED ERRORS OF MEMORY")
    return ", ".join(parts) or "tells nothing"


def format_brief(host: Mapping[str, Any]) -> str:
    """Write a host's activity in one line, for a log or a pipe."""
    found = host.get("now") or {}
    parts = [
        str(host["detail"]),
        *(f"engine {row['index']}: {_format_engine(row)}" for row in found.get("engines") or ()),
        *(f"GPU {row['index']}: {_format_gpu(row)}" for row in found.get("gpus") or ()),
    ]
    read = found.get("memory_read_bytes_per_s")
    parts += [f"memory {read / 1e9:.1f} GB/s read"] if read is not None else []
    last = (host.get("watchdog") or {}).get("last_hang")
    if last and last["served_again_s"] is None:
        parts.append(f"{last['unit']} hangs ({last['done']})")
    return "; ".join(parts)


def format_watchdog(found: WatchdogStatus | None) -> list[str]:
    """Write whether the watchdog runs, and the last hang; nothing for an earlier version."""
    if not found:
        return []
    if not found["enabled"]:
        return format_entry("watchdog", f"none: {found['reason']}")
    stopped = "" if found["state"] == "active" else f"IT IS {found['state'].upper()}; "
    ends = [
        line
        for end in found.get("memory_ended") or []
        for line in format_entry("", f"{end['unit']} reached its memory limit at {end['at']}")
    ]
    last = found["last_hang"]
    if not last:
        return [*format_entry("watchdog", f"{stopped}no engine hung so far"), *ends]
    again = last["served_again_s"]
    ended = (
        f"it went on {format_duration(again)} after its last step" if again else "NOT SERVING SINCE"
    )
    kept = f"; kept as /var/lib/kimi/hangs/{last['bundle']}" if last["bundle"] else ""
    return [
        *format_entry(
            "watchdog",
            f"{stopped}{last['unit'].removesuffix('.service')} hung at {last['at']} "
            f"({last['done']}); {ended}{kept}",
        ),
        *format_entry("", last["why"]),
        *ends,
    ]


def _format_share(value: float) -> str:
    return f"{value * 100:.0f} %"
