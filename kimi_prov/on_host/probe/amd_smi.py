"""AMD GPUs: the kernel's files, with names from amd-smi or rocm-smi."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import gpu_rows

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts.gpus import AmdFacts, GpuFacts
    from kimi_prov.on_host.system.machine import Machine

_AMD = "0x1002"
_MIN_BYTES = 4 << 30  # The processor's own graphics have too little memory to be listed.


def list_gpus(machine: Machine) -> list[GpuFacts]:
    """Return one row for each card that the kernel's driver serves; memory in bytes."""
    found: list[GpuFacts] = []
    for path in machine.glob("/sys/bus/pci/devices/*"):
        if machine.read(f"{path}/vendor") != _AMD:
            continue
        size = machine.read_int(f"{path}/mem_info_vram_total")
        if size is None or size < _MIN_BYTES:
            continue
        name = machine.read(f"{path}/product_name") or None
        found.append(
            {
                **gpu_rows.make_gpu_row(len(found), "amd", name, size),
                "memory_used_bytes": machine.read_int(f"{path}/mem_info_vram_used"),
                "uuid": None,
                "pci": path.rsplit("/", 1)[1],
                "compute_capability": None,
                "pcie": {
                    "gen": parse_generation(machine.read(f"{path}/current_link_speed")),
                    "gen_max": parse_generation(machine.read(f"{path}/max_link_speed")),
                    "width": machine.read_int(f"{path}/current_link_width"),
                    "width_max": machine.read_int(f"{path}/max_link_width"),
                },
                "power_limit_w": None,
                "mig": None,
                "ecc": None,
                "persistence": None,
                "numa_node": machine.node(f"{path}/numa_node"),
                "fabric_state": None,
            }
        )
    if any(gpu["model"] is None for gpu in found):
        _name(found, _read_market_names(machine))
    return found


def describe_amd(machine: Machine) -> AmdFacts | None:
    """Return driver and ROCm, or None where the kernel has no such driver loaded."""
    if not machine.exists("/sys/module/amdgpu"):
        return None
    return {
        "driver": machine.read("/sys/module/amdgpu/version"),
        "rocm": machine.read("/opt/rocm/.info/version"),
    }


def parse_generation(speed: str | None) -> int | None:
    """Return the PCIe generation of a speed: `32.0 GT/s PCIe` is the fifth."""
    match = re.match(r"[\d.]+", speed or "")
    known = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
    try:
        return known.get(float(match.group())) if match else None
    except ValueError:
        return None


def _read_market_names(machine: Machine) -> dict[str, str]:
    """Return GPU names by PCI address."""
    return parse_amd_smi(machine.run(["amd-smi", "static", "--asic", "--bus", "--json"], 20)) or (
        parse_rocm_smi(machine.run(["rocm-smi", "--showproductname", "--showbus", "--json"], 20))
    )


def parse_amd_smi(text: str | None) -> dict[str, str]:
    """Parse `amd-smi static --json`: address -> market name. One card may come without a list."""
    document = _parse_json(text)
    rows = document.get("gpu_data", [document]) if isinstance(document, dict) else document
    found = {}
    for row in rows if isinstance(rows, list) else []:
        try:
            if _is_market_name(row["asic"]["market_name"]):
                found[str(row["bus"]["bdf"]).lower()] = str(row["asic"]["market_name"])
        except (KeyError, TypeError):
            continue
    return found


def parse_rocm_smi(text: str | None) -> dict[str, str]:
    """Parse `rocm-smi --json`: address -> name of the card, whose key changed over the years."""
    document = _parse_json(text)
    found = {}
    for row in document.values() if isinstance(document, dict) else ():
        if isinstance(row, dict):
            names = (row.get(key) for key in ("Device Name", "Card Series", "Card series"))
            name = next((name for name in names if _is_market_name(name)), None)
            bus = str(row.get("PCI Bus") or "").split()
            if name and bus:
                found[bus[0].lower()] = str(name)
    return found


def _is_market_name(name: object) -> bool:
    """Return whether this is a name: without one the tools print N/A or the device id."""
    return isinstance(name, str) and name not in ("", "N/A") and not name.startswith("0x")


def _parse_json(text: str | None) -> Any:  # noqa: ANN401  (tools print what they like)
    """Parse the JSON after the warnings that both tools print first."""
    lines = (text or "").splitlines()
    start = next((n for n, line in enumerate(lines) if line.lstrip()[:1] in ("{", "[")), None)
    if start is None:
        return None
    try:
        return json.JSONDecoder().raw_decode("\n".join(lines[start:]).lstrip())[0]
    except (ValueError, RecursionError):
        return None


def _name(found: list[GpuFacts], names: dict[str, str]) -> None:
    for gpu in found:
        name = gpu["model"] or names.get(str(gpu["pci"]).lower())
        gpu.update(gpu_rows.make_gpu_row(gpu["index"], "amd", name, gpu["memory_bytes"]))
