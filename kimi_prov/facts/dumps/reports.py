"""GPUs as programs name them in their own reports: PyTorch, vLLM, SGLang, monitors, Habana."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.numbers import parse_int, parse_leading_decimal, parse_leading_int
from kimi_prov.facts.dumps.processors import locate_cpus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.facts.dumps.gpus import Row

_MAX_GPUS = 64
_AMD = re.compile(r"\bAMD\b|Instinct|Radeon|gfx\d")
# "GPU 0,1,2,3: NVIDIA H20" of SGLang, "GPU 0: NVIDIA H20" of PyTorch, with what a script adds.
_NAMED = re.compile(r"^[\s*-]*GPU (\d{1,3}(?:,\d{1,3})*):[\s*]+([^\n|]+?)[ \t]*(\|[^\n]*)?$", re.M)
_ONE = re.compile(r"^GPU models and configuration ?: ?(\S[^\n]*)$", re.MULTILINE)
_NONE = ("No CUDA", "Could not collect", "N/A")
_DRIVER = re.compile(r"(?:Nvidia driver version|CUDA Driver Version|driver) *:? +(\d{3}(?:\.\d+)+)")
# A summary for people: a script's report, neofetch, fastfetch, inxi.
_CPU = re.compile(
    r"^[\s*-]*CPU:[\s*]+(?:(\d)x )?((?:AMD|Intel|Ampere)[^\n|@]*?)(?: \(\d+\))?(?: @|$)", re.M
)
_COUNTS = re.compile(r"(\d+) socket\(s\)\D+(\d+) core\(s\)(?:[^\n]*?, (\d) thread)?")
_RAM = re.compile(
    r"^[\s*-]*(?:RAM|Memory):[\s*]+(?:[\d.]+ ?[KMGT]i?B / )?([\d.]+) ?([KMGT])i?B?\b", re.M
)
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_HABANA = re.compile(r"^HPU devices: (\d{1,3})x (HL-\w+)|^\|\s+\d{1,3}\s+(HL-\w+)", re.MULTILINE)
_NAME_KEYS = ("name", "gpu_name", "device_name", "product_name", "model")
_MEMORY_KEYS = ("memory.total", "memory_total", "memory", "mem_total", "total_memory")


@dataclass
class Report:
    """GPUs that are named, and words about what was not taken."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def parse_report(text: str) -> Report:
    """Read the lines of PyTorch's collect_env and of scripts that print the same."""
    report = Report()
    version = find_driver(text)
    for match in _NAMED.finditer(text):
        more = match[3] or ""
        size = re.search(r"\| ?(\d{4,7}) ?MiB", more)
        for _ in match[1].split(","):
            row = _make_row(len(report.rows), match[2])
            row.update({"memory.total": f"{size[1]} MiB"} if size else {})
            row.update({"driver_version": version} if version else {})
            report.rows.append(row)
    one = _ONE.search(text)
    if one and not report.rows and not one[1].startswith(_NONE):
        report.rows.append(_make_row(0, one[1]))
        report.notes.append("PyTorch names one GPU for all of its kind: how many is not told")
    report.rows = report.rows[:_MAX_GPUS]
    return report


def find_driver(text: str) -> str | None:
    """Return the version of NVIDIA's driver; PyTorch tells it some lines behind the GPUs."""
    match = _DRIVER.search(text)
    return match[1] if match else None


def parse_summary(text: str) -> dict[str, str]:
    """Return the processor and the memory of a summary in the form of the kernel's files."""
    texts: dict[str, str] = {}
    cpu, counts, memory = (one.search(text) for one in (_CPU, _COUNTS, _RAM))
    if cpu:
        texts["cpuinfo.txt"] = f"model name\t: {cpu[2].strip()}\n"
    if counts:
        threads = parse_int(counts[3]) if counts[3] else 1
        places = locate_cpus(
            sockets=parse_int(counts[1]), cores=parse_int(counts[2]), threads=threads
        )
        texts.update({"lscpu_e.txt": places} if places else {})
    size = parse_leading_decimal(memory[1]) if memory else None
    if memory and size:
        texts["meminfo.txt"] = f"MemTotal: {round(size * _UNITS[memory[2]]) // 1024} kB"
    return texts


def parse_habana(text: str) -> list[str]:
    """Return what is said of Gaudi cards, on which no engine of ours runs."""
    rows = [(parse_int(match[1]), match[2] or match[3]) for match in _HABANA.finditer(text)]
    if not rows:
        return []
    count = rows[0][0] or len(rows)
    return [f"{count} x {rows[0][1]} (Intel Gaudi): no engine of ours runs on them, not counted"]


def _make_row(index: int, text: str) -> Row:
    name = re.sub(r" *\(gfx[^)]*\)| *\(UUID[^)]*\)", "", text).strip()
    return {"index": str(index), "name": name, **({"vendor": "amd"} if _AMD.search(text) else {})}


def is_of_gpus(document: Any) -> bool:  # noqa: ANN401  (any JSON)
    """Whether a JSON document of a monitor lists GPUs."""
    return next(_list_cards(document), None) is not None


def parse_monitor(document: Any) -> list[Row]:  # noqa: ANN401  (any JSON)
    """Read the JSON of gpustat, nvtop and monitors: a list of GPUs with name and memory."""
    rows: list[Row] = []
    for part in _list_cards(document):
        row = _make_row(len(rows), _find_value(part, _NAME_KEYS))
        size = parse_leading_int(_find_value(part, _MEMORY_KEYS)) or 0
        # Bytes or MiB: no GPU has a million MiB.
        mebibytes = size >> 20 if size > 1 << 20 else size
        for name, value in (
            ("uuid", part.get("uuid")),
            ("driver_version", part.get("driver_version")),
            ("memory.total", f"{mebibytes} MiB" if mebibytes else None),
        ):
            row.update({name: str(value)[:128]} if value else {})
        rows.append(row)
    return rows[:_MAX_GPUS]


def _list_cards(document: Any) -> Iterator[dict[str, object]]:  # noqa: ANN401  (any JSON)
    parts = document.get("gpus") if isinstance(document, dict) else document
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, dict) or not _find_value(part, _NAME_KEYS):
            continue
        maker = f"{_find_value(part, ('manufacturer', 'vendor'))} {_find_value(part, _NAME_KEYS)}"
        if re.search(r"nvidia|tesla|geforce|amd|instinct", maker, re.IGNORECASE):
            yield part


def _find_value(part: dict[str, object], keys: tuple[str, ...]) -> str:
    return next((str(part[key])[:128] for key in keys if isinstance(part.get(key), (str, int))), "")
