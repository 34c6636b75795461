"""What GPUs are at now, as nvidia-smi tells it."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from kimi_prov.contract.numbers import decimal, whole
from kimi_prov.on_host.probe import nvidia_smi
from kimi_prov.on_host.system.process import NOT_FOUND, run

_PATIENCE_S = 10.0
_MIB = 1 << 20
# Named so since driver 535; before it the second.
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
COLUMNS = (
    "index",
    "name",
    "utilization.gpu",
    "utilization.memory",
    "memory.used",
    "memory.total",
    "power.draw",
    "power.limit",
    "temperature.gpu",
    "temperature.memory",
    "clocks.sm",
    "clocks.max.sm",
    "ecc.errors.uncorrected.volatile.total",
)
# Bits of the reasons that make a GPU slower than it could be; the others are of its owner's choice,
# or that it has nothing to do.
_THROTTLES = (
    (0x4, "power limit"),
    (0x8, "hardware slowdown"),
    (0x20, "temperature (driver)"),
    (0x40, "temperature (hardware)"),
    (0x80, "power brake"),
)


def read() -> Tuple[Optional[List[Dict[str, Any]]], str]:
    """Return a row for each GPU, None with the reason where they are not told; [] without any."""
    problem = ""
    for reasons in _REASONS:
        question = f"--query-gpu={','.join((*COLUMNS, reasons))}"
        done = run("nvidia-smi", question, "--format=csv,noheader,nounits", timeout=_PATIENCE_S)
        if done.returncode == NOT_FOUND:
            return [], ""
        if done.returncode == 0:
            return parse(done.stdout), ""
        told = (done.stderr or done.stdout).strip().splitlines()
        problem = f"nvidia-smi: {told[0] if told else done.returncode}"
    return None, problem


def parse(text: str) -> List[Dict[str, Any]]:
    """Read the rows of the query; what a GPU does not tell is null. Units are in the keys."""
    columns = [*COLUMNS, _REASONS[0]]
    return [_row(row) for row in nvidia_smi.table(text, columns)]


def _row(row: Dict[str, str]) -> Dict[str, Any]:
    return {
        "index": whole(row["index"]),
        "name": row["name"],
        "busy_share": _share(row["utilization.gpu"]),
        "memory_busy_share": _share(row["utilization.memory"]),
        "memory_used_bytes": _bytes(row["memory.used"]),
        "memory_total_bytes": _bytes(row["memory.total"]),
        "power_w": decimal(row["power.draw"]),
        "power_limit_w": decimal(row["power.limit"]),
        "temperature_c": decimal(row["temperature.gpu"]),
        "memory_temperature_c": decimal(row["temperature.memory"]),
        "clock_mhz": decimal(row["clocks.sm"]),
        "clock_max_mhz": decimal(row["clocks.max.sm"]),
        "ecc_uncorrected": whole(row["ecc.errors.uncorrected.volatile.total"]),
        "throttled": _throttled(row[_REASONS[0]]),
    }


def _share(text: str) -> Optional[float]:
    value = decimal(text)
    return None if value is None else value / 100


def _bytes(text: str) -> Optional[int]:
    value = decimal(text)
    return None if value is None else int(value * _MIB)


def _throttled(text: str) -> Optional[List[str]]:
    try:
        bits = int(text, 16)
    except ValueError:
        return None
    return [name for bit, name in _THROTTLES if bits & bit]
