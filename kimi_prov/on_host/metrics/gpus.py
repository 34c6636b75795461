"""Metrics of the GPUs from NVIDIA's tools and the kernel.

Decides: metrics: their port, networks and what is behind it (of GPUs).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Callable, Optional

from kimi_prov.on_host.probe import gpu_faults, nvidia_smi
from kimi_prov.on_host.probe.gpu_load import THROTTLES, GpuNow
from kimi_prov.on_host.system.exposition import Sample

# The metric, and the field of a GPU that it shows.
_FIELDS = {
    "kimi_gpu_power_watts": "power_w",
    "kimi_gpu_power_limit_watts": "power_enforced_w",
    "kimi_gpu_memory_used_bytes": "memory_used_bytes",
    "kimi_gpu_memory_total_bytes": "memory_total_bytes",
    "kimi_gpu_temperature_celsius": "temperature_c",
    "kimi_gpu_memory_temperature_celsius": "memory_temperature_c",
    "kimi_gpu_utilisation_ratio": "busy_share",
    "kimi_gpu_memory_busy_ratio": "memory_busy_share",
    "kimi_gpu_ecc_uncorrected_total": "ecc_uncorrected",
    "kimi_gpu_ecc_corrected_total": "ecc_corrected",
    "kimi_gpu_pcie_lanes": "pcie_width",
    "kimi_gpu_pcie_lanes_most": "pcie_width_max",
}
LINK_ERRORS = ("nvidia-smi", "nvlink", "-e")
# Lines of the kernel since the boot that report an error of a GPU.
KERNEL = (
    "journalctl", "--dmesg", "--boot", "--no-pager", "--output=cat", "--grep=NVRM: Xid",
)  # fmt: skip
_XID = re.compile(r"NVRM: Xid \([^)]*\): (\d{1,4}),")

# Runs a command that only reads; None where it is missing, failed or too slow.
Ask = Callable[[Sequence[str]], Optional[str]]
HELPS: dict[str, str] = {
    "kimi_gpus_planned": "GPUs that the plan uses.",
    "kimi_gpus_seen": "GPUs that nvidia-smi shows.",
    "kimi_gpu_power_watts": "Power that a GPU draws.",
    "kimi_gpu_power_limit_watts": "Power limit of a GPU.",
    "kimi_gpu_memory_used_bytes": "Memory of a GPU that is in use.",
    "kimi_gpu_memory_total_bytes": "Memory of a GPU.",
    "kimi_gpu_sm_clock_hertz": "Clock of a GPU's processors.",
    "kimi_gpu_temperature_celsius": "Temperature of a GPU.",
    "kimi_gpu_memory_temperature_celsius": "Temperature of a GPU's memory.",
    "kimi_gpu_utilisation_ratio": "Share of the last moments in which a GPU worked.",
    "kimi_gpu_memory_busy_ratio": "Share of the last moments in which a GPU's memory was used.",
    "kimi_gpu_throttled": "1 while a GPU is slowed down for this reason.",
    "kimi_gpu_ecc_uncorrected_total": "Memory errors of a GPU that were not corrected.",
    "kimi_gpu_ecc_corrected_total": "Memory errors of a GPU that were corrected.",
    "kimi_gpu_pcie_lanes": "Lanes of a GPU's PCIe link.",
    "kimi_gpu_pcie_lanes_most": "Lanes that a GPU and its slot can have.",
    "kimi_gpu_rows_remapped_total": "Rows of a GPU's memory that spare ones replaced.",
    "kimi_gpu_fault": "1 while a GPU shows this sign of failing; absent where that is unknown.",
    "kimi_gpu_nvlink_errors_total": "Errors on a GPU's NVLinks, of all kinds and links.",
    "kimi_gpu_xid_errors_total": "Errors of GPUs in the kernel's messages since the boot, by code.",
}


def collect(
    planned: int, cards: Sequence[GpuNow], ask: Ask, kept: object = None, now_s: float = 0.0
) -> tuple[list[Sample], list[gpu_faults.Reading]]:
    """Return all metrics of the GPUs, and the readings of errors to keep for the next time.

    `planned`: how many the plan uses; `kept`: the readings until `now_s`.
    """
    links = nvidia_smi.parse_link_errors(ask(LINK_ERRORS)) if len(cards) > 1 else {}
    readings = gpu_faults.add_reading(kept, cards, links, now_s)
    growth = gpu_faults.compute_growth(readings, now_s)
    samples = [
        Sample("kimi_gpus_planned", planned),
        Sample("kimi_gpus_seen", len(cards)),
        *(sample for card in cards for sample in _collect_card(card)),
        *(
            Sample("kimi_gpu_fault", bool(words), {"gpu": str(index), "fault": fault.name})
            for fault, index, words in gpu_faults.judge(cards, growth)
            if words is not None
        ),
        *(
            Sample("kimi_gpu_nvlink_errors_total", sum(counts.values()), {"gpu": index})
            for index, counts in links.items()
        ),
        *(
            Sample("kimi_gpu_xid_errors_total", count, {"code": code})
            for code, count in count_xids(ask(KERNEL) or "").items()
        ),
    ]
    return samples, readings


def _collect_card(card: GpuNow) -> list[Sample]:
    label = {"gpu": str(card.index)}
    clock = None if card.clock_mhz is None else card.clock_mhz * 1_000_000
    found = [Sample(name, getattr(card, field), label) for name, field in _FIELDS.items()]
    found.append(Sample("kimi_gpu_sm_clock_hertz", clock, label))
    found += [
        Sample("kimi_gpu_rows_remapped_total", count, {**label, "after": kind})
        for kind, count in (
            ("corrected", card.rows_remapped_correctable),
            ("uncorrected", card.rows_remapped_uncorrectable),
        )
    ]
    if card.throttled is None:
        return found
    return found + [
        Sample("kimi_gpu_throttled", reason in card.throttled, {**label, "reason": reason})
        for reason in THROTTLES
    ]


def count_xids(text: str) -> dict[str, int]:
    """Count the kernel's messages by Xid."""
    found: dict[str, int] = {}
    for match in _XID.finditer(text):
        found[match[1]] = found.get(match[1], 0) + 1
    return found
