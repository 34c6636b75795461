"""GPUs as programs name them in their own reports: PyTorch, vLLM, SGLang, monitors, Habana."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.numbers import parse_int, parse_leading_decimal, parse_leading_int
from kimi_prov.facts.dumps.processors import locate_cpus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.facts.dumps.gpus import Row

_MAX_GPUS = 64
_AMD = re.compile(r"\bAMD\b|Instinct|Radeon|gfx\d")
# "GPU 0,1,2,3: NVIDIA H20" of SGLang, "GPU 0: NVIDIA H20" of PyTorch, with what a script adds.
# Blanks are bounded and stay within a line, or a long text of blank lines takes for ever.
_NAMED = re.compile(
    r"^(?:GPU models and configuration ?: ?)?[ \t*-]{0,80}GPU (\d{1,3}(?:,\d{1,3})*):[ \t*]{1,80}"
    r"([^\s|*][^\n|]{0,300})(\|[^\n]*)?$",
    re.MULTILINE,
)
_OWN_MEMORY = re.compile(
    r"^[ \t*-]{1,80}(?:Total )?Memory:[ \t*]{1,80}([\d.]{1,12} ?[KMGT]i?B)\b", re.M | re.I
)
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([KMGT])i?B?\b", re.IGNORECASE)
_ONE = re.compile(r"^GPU models and configuration ?: ?(\S[^\n]*)$", re.MULTILINE)
_NONE = ("No CUDA", "Could not collect", "N/A")
_DRIVER = re.compile(
    r"(?:Nvidia driver version|CUDA Driver Version|driver)(?: {0,80}:)? {1,80}(\d{3}(?:\.\d+)+)"
)
# A summary for people: a script's report, neofetch, fastfetch, inxi.
_CPU = re.compile(
    r"^[ \t*-]{0,80}CPU:[ \t*]{1,80}(?:(\d) ?x )?((?:AMD|Intel|Ampere)[^\n|@]{0,200}?)"
    r"(?: \(\d{1,4}\))?(?: @|$)",
    re.MULTILINE,
)
_COUNTS = re.compile(
    r"\b(\d{1,3}) socket\(s\)\D{1,80}(\d{1,4}) core\(s\)(?:[^\n]{0,200}?, (\d) thread)?"
)
_RAM = re.compile(
    r"^[ \t*-]{0,80}(?:RAM|Memory):[ \t*]{1,80}(?:[\d.]{1,12} ?[KMGT]i?B? ?/ ?)?"
    r"([\d.]{1,12}) ?([KMGT])i?B?\b",
    re.MULTILINE,
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
    named = list(_NAMED.finditer(text))
    rows: dict[int, Row] = {}
    for match, following in zip_longest(named, named[1:]):
        end = min(match.end() + 2000, following.start() if following else len(text))
        size = _find_own_memory(match[3] or "", text[match.end() : end])
        for index in map(int, match[1].split(",")):
            row = _make_row(len(rows), match[2])
            row.update({"memory.total": f"{size} MiB"} if size else {})
            row.update({"driver_version": version} if version else {})
            # The same list once more only fills in what the first lacks.
            rows[index] = {**row, **rows.get(index, {})}
    report.rows = list(rows.values())
    one = _ONE.search(text)
    if one and not report.rows and not one[1].startswith(_NONE):
        report.rows.append(_make_row(0, one[1]))
        report.notes.append("PyTorch names one GPU for all of its kind: how many is not told")
    report.rows = report.rows[:_MAX_GPUS]
    return report


def _find_own_memory(columns: str, below: str) -> int | None:
    """Return a GPU's memory in MiB, as it stands behind its name or indented below it."""
    column = re.search(r"\| ?(\d{4,7}) ?MiB", columns)
    if column:
        return parse_int(column[1])
    line = _OWN_MEMORY.search(below)
    return _read_mebibytes(line[1]) if line else None


def _read_mebibytes(text: str) -> int | None:
    """Return a size in MiB; a number without a unit is of bytes or of MiB."""
    sized = _SIZE.match(text)
    if sized:
        return round(float(sized[1]) * _UNITS[sized[2].upper()]) >> 20
    size = parse_leading_int(text)
    # No GPU has a million MiB.
    return size >> 20 if size and size > 1 << 20 else size


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


def find_sockets(text: str) -> int | None:
    """Return how many processors a summary names: "CPU: 2x AMD EPYC 9654"."""
    cpu = _CPU.search(text)
    return parse_int(cpu[1]) if cpu else None


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
    parts = list(_list_cards(document))
    # A count beside the list is the machine's: of one kind of GPU it says how many.
    of_machine = _count_cards(document) if len(parts) == 1 and isinstance(document, dict) else 1
    for part in parts:
        row = _make_row(len(rows), _find_value(part, _NAME_KEYS))
        mebibytes = _read_mebibytes(_find_value(part, _MEMORY_KEYS))
        for name, value in (
            ("uuid", part.get("uuid")),
            ("driver_version", part.get("driver_version")),
            ("memory.total", f"{mebibytes} MiB" if mebibytes else None),
        ):
            row.update({name: str(value)[:128]} if value else {})
        count = max(_count_cards(part), of_machine)
        rows += [{**row, "index": str(len(rows) + more)} for more in range(count)]
    return rows[:_MAX_GPUS]


def _count_cards(part: dict[str, object]) -> int:
    count = parse_int(_find_value(part, ("count", "num_gpus", "gpu_count"))) or 1
    return min(count, _MAX_GPUS)


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
