"""GPUs of AMD: what rocm-smi and amd-smi print, as rows of the same table as NVIDIA's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kimi_prov.contract.numbers import parse_int

if TYPE_CHECKING:
    from kimi_prov.facts.dumps.gpus import Row

_MAX_GPUS = 64
# Names of devices that rocm-smi's overview shows by their number alone, the second of each as a
# guest sees it (ROCm/rocprofiler-compute, src/utils/mi_gpu_spec.yaml).
_DEVICES = {
    **dict.fromkeys(("74a1", "74b5"), "AMD Instinct MI300X"),
    **dict.fromkeys(("74a5", "74b9"), "AMD Instinct MI325X"),
    **dict.fromkeys(("75a0", "75b0"), "AMD Instinct MI350X"),
    **dict.fromkeys(("75a3", "75b3"), "AMD Instinct MI355X"),
}
_OVERVIEW = re.compile(r"^(\d{1,3})\s+(?:\d{1,3}\s+)?0x([0-9a-f]{4}),", re.MULTILINE)
_UNITS = {"KB": 1 / 1024, "MB": 1, "GB": 1024, "TB": 1 << 20}


def parse_static(text: str) -> list[Row]:
    """Parse `amd-smi static`: groups of names and values for each GPU."""
    rows: list[Row] = []
    group = ""
    for line in text.splitlines():
        key, mark, value = (part.strip() for part in line.partition(":"))
        if line.startswith("GPU:") and len(rows) < _MAX_GPUS:
            rows.append({"index": str(len(rows)), "vendor": "amd"})
        elif mark and not value:
            group = key
        elif rows and (group, key) in (("ASIC", "MARKET_NAME"), ("BOARD", "PRODUCT_NAME")):
            rows[-1].setdefault("name", value)
        elif rows and (group, key) == ("BUS", "BDF"):
            rows[-1]["pci.bus_id"] = value
        elif rows and (group, key) == ("VRAM", "SIZE"):
            size = re.fullmatch(r"(\d{1,9}) ([KMGT]B)", value)
            if size:
                rows[-1]["memory.total"] = f"{round(int(size[1]) * _UNITS[size[2]])} MiB"
    return [row for row in rows if row.get("name")]


def parse_overview(text: str) -> list[Row]:
    """Parse the table that amd-smi prints without options: two lines for each GPU."""
    rows: list[Row] = []
    for line in text.splitlines():
        head = re.match(r"\|\s+([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)\s+(\S.*?)\s*\|", line)
        size = re.search(r"/(\d{4,7}) MB\s*\|\s*$", line)
        if head and len(rows) < _MAX_GPUS:
            rows.append({"index": str(len(rows)), "vendor": "amd", "name": head[2]})
            rows[-1]["pci.bus_id"] = head[1]
        elif size and rows:
            rows[-1].setdefault("memory.total", f"{size[1]} MiB")
    return rows


def parse_rocm(text: str) -> list[Row]:
    """Parse rocm-smi: lines `GPU[0] : name: value`, or its overview with devices' numbers."""
    rows: dict[int, Row] = {}
    for match in re.finditer(r"^GPU\[(\d{1,3})\]\s*:\s*([^:\n]+):\s*(.*)$", text, re.MULTILINE):
        _add_rocm(rows.setdefault(int(match[1]), {}), match[2], match[3])
    for match in _OVERVIEW.finditer(text):
        if match[2] in _DEVICES:
            rows.setdefault(int(match[1]), {}).setdefault("name", _DEVICES[match[2]])
    return _list_rocm(rows)


def parse_rocm_json(document: dict[str, object]) -> list[Row]:
    """Parse `rocm-smi --json`."""
    rows: dict[int, Row] = {}
    for key, values in document.items():
        match = re.fullmatch(r"card(\d{1,3})", key)
        for name, value in values.items() if match and isinstance(values, dict) else ():
            _add_rocm(rows.setdefault(int(match[1]) if match else 0, {}), str(name), str(value))
    return _list_rocm(rows)


def _list_rocm(rows: dict[int, Row]) -> list[Row]:
    named = [(index, row) for index, row in sorted(rows.items()) if row]
    return [{"index": str(n), "vendor": "amd", **row} for n, row in named][:_MAX_GPUS]


def _add_rocm(row: Row, key: str, value: str) -> None:
    name, value = key.strip().lower(), value.strip()
    if name in ("card series", "card model", "device name", "market name") and not value.startswith(
        ("0x", "N/A")
    ):
        row.setdefault("name", value)
    elif name == "vram total memory (b)" and (size := parse_int(value)):
        row["memory.total"] = f"{size >> 20} MiB"
    elif name == "pci bus":
        row["pci.bus_id"] = value.split()[0] if value else ""
