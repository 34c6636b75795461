"""What NVIDIA's tools and the kernel say of the GPUs, as metrics.

One query of nvidia-smi for all cards, which took 30 ms of a processor with one H100.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from kimi_prov.contract.numbers import decimal
from kimi_prov.on_host.metrics.exposition import Sample

# The metric, the field of nvidia-smi, and what its number is worth in the metric's unit.
_FIELDS = (
    ("kimi_gpu_power_watts", "power.draw", 1),
    ("kimi_gpu_power_limit_watts", "enforced.power.limit", 1),
    ("kimi_gpu_memory_used_bytes", "memory.used", 1 << 20),
    ("kimi_gpu_memory_total_bytes", "memory.total", 1 << 20),
    ("kimi_gpu_sm_clock_hertz", "clocks.sm", 1_000_000),
    ("kimi_gpu_temperature_celsius", "temperature.gpu", 1),
    ("kimi_gpu_memory_temperature_celsius", "temperature.memory", 1),
    ("kimi_gpu_utilisation_ratio", "utilization.gpu", 0.01),
    ("kimi_gpu_memory_busy_ratio", "utilization.memory", 0.01),
    ("kimi_gpu_ecc_uncorrected_total", "ecc.errors.uncorrected.aggregate.total", 1),
    ("kimi_gpu_ecc_corrected_total", "ecc.errors.corrected.aggregate.total", 1),
)
# Its first name since driver 535 is the other; both are taken by the drivers that are pinned.
_REASONS = "clocks_throttle_reasons.active"
COLUMNS = ("index", *(field for _, field, _ in _FIELDS), _REASONS)
QUERY = ("nvidia-smi", f"--query-gpu={','.join(COLUMNS)}", "--format=csv,noheader,nounits")
LINK_ERRORS = ("nvidia-smi", "nvlink", "-e")
# Lines of the kernel since the boot that tell of an error of a GPU.
KERNEL = (
    "journalctl", "--dmesg", "--boot", "--no-pager", "--output=cat", "--grep=NVRM: Xid",
)  # fmt: skip
# Bits of NVML (nvml.h, nvmlClocksEventReason*): what slows a card down that has work.
_THROTTLED = {
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
_XID = re.compile(r"NVRM: Xid \([^)]*\): (\d{1,4}),")
_GPU = re.compile(r"^GPU (\d+):")
_LINK = re.compile(r"^\s+Link \d+: .*\bErrors?: (\d+)\s*$")

# Runs a command that only reads; None where it is missing, failed or too slow.
Ask = Callable[[Sequence[str]], Optional[str]]
HELPS: Dict[str, str] = {
    "kimi_gpus_planned": "GPUs that the plan uses.",
    "kimi_gpus_seen": "GPUs that nvidia-smi shows.",
    "kimi_gpu_power_watts": "Power that a GPU draws.",
    "kimi_gpu_power_limit_watts": "Power at which a GPU is held.",
    "kimi_gpu_memory_used_bytes": "Memory of a GPU that is taken.",
    "kimi_gpu_memory_total_bytes": "Memory of a GPU.",
    "kimi_gpu_sm_clock_hertz": "Clock of a GPU's processors.",
    "kimi_gpu_temperature_celsius": "Temperature of a GPU.",
    "kimi_gpu_memory_temperature_celsius": "Temperature of a GPU's memory.",
    "kimi_gpu_utilisation_ratio": "Share of the last moments in which a GPU worked.",
    "kimi_gpu_memory_busy_ratio": "Share of the last moments in which a GPU's memory was used.",
    "kimi_gpu_throttled": "1 while a GPU is slowed down for this reason.",
    "kimi_gpu_ecc_uncorrected_total": "Memory errors of a GPU that were not corrected.",
    "kimi_gpu_ecc_corrected_total": "Memory errors of a GPU that were corrected.",
    "kimi_gpu_nvlink_errors_total": "Errors on a GPU's NVLinks, of all kinds and links.",
    "kimi_gpu_xid_errors_total": "Errors of GPUs in the kernel's messages since the boot, by code.",
}


def collect(planned: int, ask: Ask) -> List[Sample]:
    """Return all metrics of the GPUs; `planned`: how many the plan uses."""
    found = cards(ask(QUERY) or "")
    errors = link_errors(ask(LINK_ERRORS) or "") if len(found) > 1 else {}
    return [
        Sample("kimi_gpus_planned", planned),
        Sample("kimi_gpus_seen", len(found)),
        *(sample for index, row in found.items() for sample in _card(index, row)),
        *(
            Sample("kimi_gpu_nvlink_errors_total", count, {"gpu": index})
            for index, count in errors.items()
        ),
        *(
            Sample("kimi_gpu_xid_errors_total", count, {"code": code})
            for code, count in xids(ask(KERNEL) or "").items()
        ),
    ]


def cards(text: str) -> Dict[str, Mapping[str, str]]:
    """Read the answer to QUERY: each card's fields, by its index."""
    rows = ([cell.strip() for cell in line.split(",")] for line in text.splitlines())
    found = [dict(zip(COLUMNS, row)) for row in rows if len(row) == len(COLUMNS)]
    return {row["index"]: row for row in found if row["index"].isdigit()}


def _card(index: str, row: Mapping[str, str]) -> List[Sample]:
    label = {"gpu": index}
    found = []
    for name, field, worth in _FIELDS:
        number = decimal(row[field])
        value = None if number is None else round(number * worth, 3)
        found.append(Sample(name, value, label))
    try:
        bits = int(row[_REASONS], 16)
    except ValueError:
        return found
    return found + [
        Sample("kimi_gpu_throttled", bool(bits & bit), {**label, "reason": reason})
        for reason, bit in _THROTTLED.items()
    ]


def link_errors(text: str) -> Dict[str, int]:
    """Sum the errors of each card's links, as `nvidia-smi nvlink -e` lists them."""
    found: Dict[str, int] = {}
    index = None
    for line in text.splitlines():
        if head := _GPU.match(line):
            index = head[1]
        elif index is not None and (error := _LINK.match(line)):
            found[index] = found.get(index, 0) + int(error[1])
    return found


def xids(text: str) -> Dict[str, int]:
    """Count the kernel's messages by Xid."""
    found: Dict[str, int] = {}
    for match in _XID.finditer(text):
        found[match[1]] = found.get(match[1], 0) + 1
    return found
