"""The present state of GPUs as `status` shows it, and what begins to fail."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kimi_prov.on_host.probe import gpu_faults, gpu_load
from kimi_prov.on_host.system.files import read_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.contract.documents.findings import ToldFinding
    from kimi_prov.contract.documents.status.activity import GpuNow
    from kimi_prov.contract.paths import Paths

_TIMEOUT_S = 10.0
_WORDS = {
    "sw_power_cap": "power limit",
    "hw_slowdown": "hardware slowdown",
    "sw_thermal_slowdown": "temperature (driver)",
    "hw_thermal_slowdown": "temperature (hardware)",
    "hw_power_brake_slowdown": "power brake",
}


def read() -> tuple[list[gpu_load.GpuNow] | None, str]:
    """Return each GPU, None with the reason where they are unknown; [] without any."""
    return gpu_load.read(_TIMEOUT_S)


def list_findings(paths: Paths, cards: Sequence[gpu_load.GpuNow]) -> list[ToldFinding]:
    """Return the signs of failing GPUs; errors of the last hour are those that the metrics keep."""
    kept = read_json(paths.metrics_state).get(gpu_faults.READINGS)
    return gpu_faults.list_findings(cards, gpu_faults.compute_growth(kept, time.time()))


def build_row(card: gpu_load.GpuNow) -> GpuNow:
    """Return one GPU; unknown values are null. Units are in the keys."""
    return {
        "index": card.index,
        "name": card.name,
        "busy_share": card.busy_share,
        "memory_busy_share": card.memory_busy_share,
        "memory_used_bytes": card.memory_used_bytes,
        "memory_total_bytes": card.memory_total_bytes,
        "power_w": card.power_w,
        "power_limit_w": card.power_limit_w,
        "temperature_c": card.temperature_c,
        "memory_temperature_c": card.memory_temperature_c,
        "clock_mhz": card.clock_mhz,
        "clock_max_mhz": card.clock_max_mhz,
        "ecc_uncorrected": card.ecc_uncorrected_now,
        "throttled": None if card.throttled is None else [_WORDS[name] for name in card.throttled],
    }
