"""The present state of GPUs, as `status` shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.on_host.probe import gpu_load

if TYPE_CHECKING:
    from kimi_prov.contract.documents.status.activity import GpuNow

_TIMEOUT_S = 10.0
_WORDS = {
    "sw_power_cap": "power limit",
    "hw_slowdown": "hardware slowdown",
    "sw_thermal_slowdown": "temperature (driver)",
    "hw_thermal_slowdown": "temperature (hardware)",
    "hw_power_brake_slowdown": "power brake",
}


def read() -> tuple[list[GpuNow] | None, str]:
    """Return a row for each GPU, None with the reason where they are unknown; [] without any."""
    found, problem = gpu_load.read(_TIMEOUT_S)
    return None if found is None else [build_row(card) for card in found], problem


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
