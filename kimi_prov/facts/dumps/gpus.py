"""GPUs, from every form that nvidia-smi, rocm-smi and lspci print, as rows of one table."""

from __future__ import annotations

import csv
import io
import re

from kimi_prov.contract.clean_text import clean_block
from kimi_prov.contract.numbers import parse_leading_int

Row = dict[str, str]

_MAX_GPUS = 64
_TABLE_ROW = re.compile(
    r"^\|\s+(\d{1,3})\s+(\S.*?)\s+(?:On|Off|N/A)\s*\|\s*([0-9A-Fa-f:.]{12,16})\s+\S+\s*\|"
)
_TABLE_MEMORY = re.compile(r"\|\s*\d+MiB\s*/\s*(\d+)MiB\s*\|")
_TABLE_MIG = re.compile(r"^\|\s*\|\s*\|\s*(Enabled|Disabled|N/A)(\*?)\s*\|")
_VERSIONS = re.compile(r"Driver Version: (\S+)(?:\s+CUDA Version: (\d[\d.]*))?")
_QUERY_KEYS = {
    "Product Name": "name",
    "FB Memory Usage/Total": "memory.total",
    "GPU UUID": "uuid",
    "MIG Mode/Current": "mig.mode.current",
    "MIG Mode/Pending": "mig.mode.pending",
    "ECC Mode/Current": "ecc.mode.current",
    "Ecc Mode/Current": "ecc.mode.current",
    "Persistence Mode": "persistence_mode",
    "Fabric/State": "fabric.state",
    "PCI/GPU Link Info/PCIe Generation/Max": "pcie.link.gen.max",
    "PCI/GPU Link Info/Link Width/Max": "pcie.link.width.max",
}
# Other names of columns of --query-gpu.
_COLUMN_NAMES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "compute_capability": "compute_cap",
    "mig.mode": "mig.mode.current",
}
_NUMBERED = re.compile(r"\bDevice ([0-9a-f]{4})\b")
_VENDORS = (("NVIDIA Corporation", "10de"), ("Advanced Micro Devices", "1002"))
_CLASSES = (
    ("3D controller", "0302"),
    ("VGA compatible controller", "0300"),
    ("Display controller", "0380"),
    ("Processing accelerators", "1200"),
    ("Bridge", "0680"),
)


def parse_table(text: str) -> list[Row]:
    """Parse the table that nvidia-smi prints without options."""
    versions = _VERSIONS.search(text)
    rows: list[Row] = []
    for line in text.splitlines():
        head, memory, mig = (p.search(line) for p in (_TABLE_ROW, _TABLE_MEMORY, _TABLE_MIG))
        if head and len(rows) < _MAX_GPUS:
            rows.append({"index": head[1], "name": head[2], "pci.bus_id": head[3]})
            if versions:
                rows[-1]["driver_version"] = versions[1]
        elif memory and rows and "memory.total" not in rows[-1]:
            rows[-1]["memory.total"] = f"{memory[1]} MiB"
        elif mig and rows:
            rows[-1]["mig.mode.current"] = mig[1]
            # An asterisk: another mode is pending.
            other = "Disabled" if mig[1] == "Enabled" else "Enabled"
            rows[-1]["mig.mode.pending"] = other if mig[2] else mig[1]
    return rows


def parse_list(text: str) -> list[Row]:
    """Parse `nvidia-smi -L`; a MIG device below a GPU means that it is cut."""
    rows: list[Row] = []
    for line in text.splitlines():
        match = re.match(r"GPU (\d{1,3}): (.+?) \(UUID: ([^)]+)\)", line)
        if match:
            rows.append({"index": match[1], "name": match[2], "uuid": match[3]})
        elif re.match(r"\s+MIG \S+\s+Device", line) and rows:
            rows[-1]["mig.mode.current"] = "Enabled"
    return rows[:_MAX_GPUS]


def parse_query(text: str) -> list[Row]:
    """Parse `nvidia-smi -q`: names and values, indented by their group."""
    rows: list[Row] = []
    top: Row = {}
    groups: list[tuple[int, str]] = []
    for line in text.splitlines():
        start = re.match(r"GPU ([0-9A-Fa-f:.]{12,16})\s*$", line)
        if start and len(rows) < _MAX_GPUS:
            rows.append({"index": str(len(rows)), "pci.bus_id": start[1], **top})
            groups = []
            continue
        indent = len(line) - len(line.lstrip())
        key, mark, value = (part.strip() for part in line.partition(" : "))
        groups = [group for group in groups if group[0] < indent]
        if not mark:
            groups.append((indent, line.strip()))
        elif key == "Driver Version" and not rows:
            top["driver_version"] = value
        elif rows and value not in ("", "N/A"):
            name = _QUERY_KEYS.get("/".join([*(group[1] for group in groups), key]))
            if name:
                rows[-1].setdefault(name, value)
    return rows


def parse_columns(text: str) -> list[Row]:
    """Parse `nvidia-smi --query-gpu --format=csv` in any order, with or without head and units."""
    lines = [line for line in text.splitlines() if line.strip()]
    table = [
        [cell.strip() for cell in row]
        for row in csv.reader(io.StringIO("\n".join(lines[: _MAX_GPUS + 1])), skipinitialspace=True)
    ]
    if not table:
        return []
    named = [re.sub(r"\s*\[.*\]", "", cell).strip().lower() for cell in table[0]]
    head = [_COLUMN_NAMES.get(name, name) for name in named]
    if {"name", "memory.total", "uuid", "index"} & set(head):
        body = table[1:]
    else:
        body, head = table, _find_columns(table)
    rows: list[Row] = []
    for cells in body:
        row = dict(zip(head, cells, strict=False))
        if len(cells) == len(head) and (row.get("name") or row.get("uuid")):
            rows.append({"index": str(len(rows)), **row})
    return rows


def _find_columns(table: list[list[str]]) -> list[str]:
    """Name the columns of a table without a head, each by what it holds."""
    names: list[str] = []
    sizes: dict[int, int] = {}
    for position, cells in enumerate(zip(*table, strict=False)):
        name = _find_column(cells, [str(n) for n in range(len(cells))])
        if name == "size":
            sizes[position] = max(parse_leading_int(cell) or 0 for cell in cells)
        names.append(name if name not in names else "")
    # Of memory in all, in use and free, all is the largest.
    if sizes:
        names[max(sizes, key=lambda position: sizes[position])] = "memory.total"
    return names


def _find_column(cells: tuple[str, ...], count: list[str]) -> str:
    if list(cells) == count:
        return "index"
    for name, pattern in (
        ("uuid", r"GPU-\S+"),
        ("pci.bus_id", r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d"),
        ("name", r"(?=.*[A-Z]).*(?:NVIDIA|Tesla|GeForce|Quadro|RTX|[ABHL]\d{2,3}).*"),
        ("driver_version", r"\d{3}\.\d+(?:\.\d+)?"),
        ("compute_cap", r"\d{1,2}\.\d"),
        ("size", r"\d{4,7}(?: MiB)?"),
    ):
        if all(re.fullmatch(pattern, cell) for cell in cells):
            return name
    return ""


def write_columns(rows: list[Row]) -> str:
    """Write rows as the table that a recording has."""
    names = list(dict.fromkeys(name for row in rows for name in row if name))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([re.sub(r"[,\n\"]", " ", row.get(name, "")) for name in names] for row in rows)
    return stream.getvalue()


def count_topology(text: str) -> list[Row]:
    """Return a row without a name for each GPU of the matrix."""
    many = len(set(re.findall(r"^GPU(\d{1,2})[ \t]", text, re.MULTILINE)))
    return [{"index": str(n), "name": "a GPU of no name"} for n in range(min(many, _MAX_GPUS))]


def normalise_topology(text: str) -> dict[str, str]:
    """Return `nvidia-smi topo -m` with tabs: a terminal shows blanks in their position."""
    lines = [line.rstrip() for line in clean_block(text).splitlines()]
    if "\t" in lines[0].strip():
        return {"nvidia-smi-topo-m.txt": text}
    named = [name for name in ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID") if name in lines[0]]
    devices = lines[0]
    for name in named:
        devices = devices.replace(name, "")
    heads = devices.split()
    out = ["\t".join(["", *heads, *named])]
    for line in lines[1:]:
        words = line.split()
        if words and re.fullmatch(r"GPU\d+", words[0]) and len(words) > len(heads):
            out.append("\t".join([*words, *[""] * (1 + len(heads) + len(named) - len(words))]))
    return {"nvidia-smi-topo-m.txt": "\n".join(out)}


def parse_bus(text: str) -> tuple[str, list[Row]]:
    """Return `lspci` as lines of the recorded bus, and the accelerators that it names."""
    lines: list[str] = []
    rows: list[Row] = []
    for line in text.splitlines():
        match = re.match(r"\s*((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.*)$", line)
        vendor = next((code for name, code in _VENDORS if match and name in match[2]), None)
        kind = next((code for name, code in _CLASSES if match and match[2].startswith(name)), None)
        if match is None or vendor is None or kind is None:
            continue
        address = match[1] if match[1].count(":") == 2 else f"0000:{match[1]}"
        ids = re.search(r"\[(10de|1002):([0-9a-f]{4})\]", match[2])
        # An older list of names has "Device 2330" in place of the name.
        device = ids[2] if ids else (_NUMBERED.search(match[2]) or ("", "0000"))[1]
        lines.append(f"{address} 0x{vendor} 0x{device} 0x{kind}00")
        brackets = [b for b in re.findall(r"\[([^\]]+)\]", match[2]) if not _is_code(b)]
        if kind != "0680" and (vendor == "10de" or "Instinct" in match[2]) and brackets:
            rows.append(
                {
                    "index": str(len(rows)),
                    "name": brackets[-1],
                    "pci.bus_id": address,
                    "vendor": "nvidia" if vendor == "10de" else "amd",
                }
            )
    return "\n".join(lines), rows[:_MAX_GPUS]


def _is_code(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{4}(?::[0-9a-f]{4})?|AMD/ATI|AMD", text) is not None
