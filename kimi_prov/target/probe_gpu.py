"""Graphics processors: what is on the bus, and what NVIDIA's driver says of it."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional

from kimi_prov.target.machine import Machine, fields

_QUERY = ("index", "name", "memory.total", "uuid", "pci.bus_id", "compute_cap")
_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302", "0x0380")


def gpus(machine: Machine) -> List[Dict[str, Any]]:
    """One row for each GPU that the driver serves; memory in bytes."""
    if not machine.exists("/proc/driver/nvidia/version"):
        return []
    text = machine.run(
        ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"],
        timeout_s=60,
    )
    rows = []
    for line in (text or "").splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(_QUERY) and values[0].isdigit():
            memory = values[2]
            rows.append(
                {
                    "index": int(values[0]),
                    "vendor": "nvidia",
                    "model": values[1],
                    "memory_total_bytes": int(memory) << 20 if memory.isdigit() else None,
                    "uuid": values[3],
                    "pci": values[4],
                    "compute_capability": values[5],
                }
            )
    return rows


def nvidia(machine: Machine) -> Optional[Dict[str, Any]]:
    """Driver loaded and installed, or None where there is neither such a card nor a driver."""
    cards = [
        path
        for path in machine.glob("/sys/bus/pci/devices/*")
        if machine.read(f"{path}/vendor") == _NVIDIA
        and (machine.read(f"{path}/class") or "")[:6] in _DISPLAY
    ]
    version = machine.read("/proc/driver/nvidia/version")
    if not cards and version is None:
        return None
    loaded = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", version or "")
    installed = fields(machine.run(["modinfo", "nvidia"]), ":").get("version")
    return {
        "pci_devices": len(cards),
        "driver_loaded": loaded.group(1) if loaded else None,
        "driver_installed": installed,
        "open_module": "Open Kernel Module" in version if version else None,
    }
