"""Parsers of the output of NVIDIA's tools: functions of text, for live machines and recordings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as Xml

from kimi_prov.contract import clean_text, gpu_rows
from kimi_prov.contract.numbers import parse_int, parse_leading_decimal, parse_leading_int

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts.gpus import GpuFacts

_GPU = re.compile(r"GPU(\d+)")
_NV = re.compile(r"NV([0-9]{1,4})")
_LINK = re.compile(r"Link \d+:\s*([\d.]+) GB/s")
_LINKS_OF = re.compile(r"^GPU (\d{1,4}):")
_LINK_ERRORS = re.compile(r"^\s+Link \d+: (.*?)\s*\bErrors?: (\d{1,18})\s*$")
_VERSION = re.compile(r"\s(\d{3,}\.\d+(?:\.\d+)*)\s")
_ONLINE = ("Enabled", "Yes", "Active")
_OFFLINE = ("Disabled", "No", "Not Active")

# The columns of `--query-gpu`; only that query has the compute capability.
COLUMNS = ("index", "name", "memory.total", "uuid", "pci.bus_id", "compute_cap")


def parse_query(text: str | None) -> dict[str, Any] | None:
    """Parse `nvidia-smi -q -x`: driver, CUDA and a row for each GPU; None for another form."""
    if not text or "<nvidia_smi_log" not in text:
        return None
    # The document type declaration names a file that does not exist.
    body = text[text.index("<nvidia_smi_log") :]
    try:
        root = Xml.fromstring(body)  # noqa: S314  (no declarations left: nothing to expand)
    except Xml.ParseError:
        return None
    return {
        "driver": _find_text(root, "driver_version"),
        "cuda": _find_text(root, "cuda_version"),
        "gpus": [_parse_gpu(number, node) for number, node in enumerate(root.findall("gpu"))],
    }


def _parse_gpu(number: int, node: Xml.Element) -> GpuFacts:
    name = _find_text(node, "product_name")
    size = parse_mebibytes(_find_text(node, "fb_memory_usage/total"))
    link = "pci/pci_gpu_link_info/"
    return {
        **gpu_rows.make_gpu_row(number, "nvidia", name, size),
        "architecture": _find_text(node, "product_architecture"),
        "memory_used_bytes": parse_mebibytes(_find_text(node, "fb_memory_usage/used")),
        "uuid": _find_text(node, "uuid"),
        "pci": _find_text(node, "pci/pci_bus_id") or node.get("id"),
        "compute_capability": None,
        "pcie": {
            # The card lowers its link when idle, so the current generation says little then; the
            # maximum of card and board together does.
            "gen": parse_leading_int(_find_text(node, link + "pcie_gen/current_link_gen")),
            "gen_max": parse_leading_int(_find_text(node, link + "pcie_gen/max_link_gen")),
            "gen_card": parse_leading_int(_find_text(node, link + "pcie_gen/max_device_link_gen")),
            "width": parse_leading_int(_find_text(node, link + "link_widths/current_link_width")),
            "width_max": parse_leading_int(_find_text(node, link + "link_widths/max_link_width")),
        },
        "power_limit_w": _parse_power(node, "current_power_limit"),
        "power_limit_max_w": _parse_power(node, "max_power_limit"),
        "mig": parse_switch(_find_text(node, "mig_mode/current_mig")),
        "mig_pending": parse_switch(_find_text(node, "mig_mode/pending_mig")),
        "ecc": parse_switch(_find_text(node, "ecc_mode/current_ecc")),
        "persistence": parse_switch(_find_text(node, "persistence_mode")),
        "passthrough": _find_text(node, "gpu_virtualization_mode/virtualization_mode")
        == "Pass-Through",
        "numa_node": None,
        "cpus": None,
        "fabric_state": _find_text(node, "fabric/state"),
        "fabric_status": _find_text(node, "fabric/status"),
    }


def parse_table(text: str | None, columns: list[str] | None = None) -> list[dict[str, str]]:
    """Parse `--format=csv`: a row for each GPU by column; the head names missing `columns`."""
    lines = [line for line in (text or "").splitlines() if line.strip()]
    if columns is None:
        head = lines.pop(0) if lines else ""
        columns = [re.sub(r"\s*\[.*\]", "", name).strip() for name in head.split(",")]
    rows = []
    for line in lines:
        values = [value.strip() for value in line.split(",")]
        row = dict(zip(columns, values))
        if len(values) == len(columns) and parse_int(row.get("index")) is not None:
            rows.append(row)
    return rows


def build_gpu(row: dict[str, str]) -> GpuFacts:
    """Return a GPU from its row of the table, where the XML is not available."""
    name, size = row.get("name"), parse_mebibytes(row.get("memory.total"))
    return {
        **gpu_rows.make_gpu_row(int(row["index"]), "nvidia", name, size),
        "uuid": row.get("uuid"),
        "pci": row.get("pci.bus_id"),
        "compute_capability": parse_capability(row.get("compute_cap")),
        "pcie": {
            "gen": None,
            "gen_max": parse_leading_int(row.get("pcie.link.gen.max")),
            "width": None,
            "width_max": parse_leading_int(row.get("pcie.link.width.max")),
        },
        "power_limit_w": parse_leading_decimal(row.get("power.limit")),
        "mig": parse_switch(row.get("mig.mode.current")),
        "mig_pending": parse_switch(row.get("mig.mode.pending")),
        "ecc": parse_switch(row.get("ecc.mode.current")),
        "persistence": parse_switch(row.get("persistence_mode")),
        "numa_node": None,
        "fabric_state": None,
    }


def parse_capability(text: str | None) -> str | None:
    """Return `9.0` if it is such a version; an old nvidia-smi answers with an error here."""
    return text if text and re.fullmatch(r"\d+\.\d+", text) else None


def parse_topology(text: str | None) -> dict[str, Any] | None:
    """Parse `nvidia-smi topo -m`: the path between each two GPUs, and each one's CPUs and node."""
    # `nvidia-smi topo` underlines its head even into a pipe.
    lines = [line for line in clean_text.clean_block(text or "").splitlines() if line.strip()]
    head = next((line for line in lines if _GPU.match(line.strip())), None)
    if head is None:
        return None
    names = [name.strip() for name in head.split("\t")]
    names = names[1:] if names and not names[0] else names
    columns = [place for place, name in enumerate(names) if _GPU.fullmatch(name)]
    paths: list[list[str | None]] = []
    near: list[dict[str, Any]] = []
    for line in lines[lines.index(head) + 1 :]:
        cells = [cell.strip() for cell in line.split("\t")]
        if not _GPU.fullmatch(cells[0]):
            continue
        row = dict(zip(names, cells[1:]))
        values = cells[1:]
        paths.append([values[place] if place < len(values) else None for place in columns])
        near.append(
            {
                "cpus": _parse_cpus(row.get("CPU Affinity")),
                "numa_node": parse_leading_int(row.get("NUMA Affinity")),
                "memory_numa_node": parse_leading_int(row.get("GPU NUMA ID")),
            }
        )
    return {
        "paths": paths,
        "matrix": [[_parse_link_count(cell) for cell in line] for line in paths],
        "near": near,
    }


def _parse_link_count(cell: str | None) -> int | None:
    """Return the links of a cell: `NV18` is 18, the card itself and any other path none."""
    if cell is None:
        return None
    match = _NV.fullmatch(cell)
    return int(match.group(1)) if match else 0


def _parse_cpus(text: str | None) -> str | None:
    return text if text and re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text) else None


def parse_links(text: str | None) -> list[dict[str, Any]] | None:
    """Parse `nvidia-smi nvlink -s`: active links on each GPU and the speed of one, bytes/s."""
    if not text:
        return None
    found: list[dict[str, Any]] = []
    for line in text.splitlines():
        if _GPU.match(line.replace(" ", "")):
            found.append({"links": 0, "bytes_per_s": None})
        match = _LINK.search(line)
        if match and found:
            found[-1]["links"] += 1
            speed = parse_leading_decimal(match.group(1))
            found[-1]["bytes_per_s"] = None if speed is None else round(speed * 1e9)
    return found or None


def parse_link_errors(text: str | None) -> dict[str, dict[str, int]]:
    """Parse `nvidia-smi nvlink -e`: the errors of each card's links together, by kind.

    Kinds are `replay`, `recovery` and `crc`, and others on newer cards.
    """
    by_card: dict[str, dict[str, int]] = {}
    counts: dict[str, int] | None = None
    for line in (text or "").splitlines():
        if head := _LINKS_OF.match(line):
            counts = by_card.setdefault(head[1], {})
        elif counts is not None and (error := _LINK_ERRORS.match(line)):
            kind = error[1].lower()
            counts[kind] = counts.get(kind, 0) + int(error[2])
    return by_card


def parse_module(text: str | None) -> dict[str, Any]:
    """Parse /proc/driver/nvidia/version: the version that is loaded, and whether it is open."""
    if not text:
        return {"version": None, "open": None}
    match = _VERSION.search(text)
    return {
        "version": match.group(1) if match else None,
        "open": "Open Kernel Module" in text,
    }


def has_switch(
    found: list[list[int | None]] | None, gpus: list[GpuFacts], bridges: int
) -> bool | None:
    """Return whether a switch joins the GPUs' links; `bridges`: NVSwitch devices on the bus.

    A virtual machine gets the GPUs but not the switches: there the fabric's state, or links between
    all of many GPUs, indicate them.
    """
    if bridges or any(gpu.get("fabric_state") == "Completed" for gpu in gpus):
        return True
    if not found or any(cell is None for line in found for cell in line):
        return False if len(gpus) == 1 else None
    joined = [cell for a, line in enumerate(found) for b, cell in enumerate(line) if a != b]
    # Without a switch, a card's links are divided: with eight cards no two have many links.
    return len(found) > 4 and all((cell or 0) >= 4 for cell in joined)


def _find_text(node: Xml.Element, path: str) -> str | None:
    value = (node.findtext(path) or "").strip()
    return value if value and value != "N/A" else None


def parse_switch(text: str | None) -> bool | None:
    """Return whether a setting is on; None for "[Not Supported]" and other answers."""
    return True if text in _ONLINE else False if text in _OFFLINE else None


def parse_mebibytes(text: str | None) -> int | None:
    """Return `143771 MiB` as bytes."""
    number = parse_leading_int(text)
    return number << 20 if number is not None else None


def _parse_power(node: Xml.Element, name: str) -> float | None:
    """Return the group of a driver; before version 525 it has another name."""
    for group in ("gpu_power_readings", "power_readings"):
        found = parse_leading_decimal(_find_text(node, f"{group}/{name}"))
        if found is not None:
            return found
    return None
