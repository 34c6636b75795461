"""Overviews of a machine: lstopo, inxi, and the lines of dmidecode that people cut out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kimi_prov.contract.numbers import parse_int, parse_leading_decimal
from kimi_prov.facts.dumps.processors import locate_cpus

if TYPE_CHECKING:
    from kimi_prov.facts.dumps.gpus import Row

_MAX_NODES = 256
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = r"([\d.]{1,12}) ?([KMGT])i?B"
_MACHINE = re.compile(rf"^\s*Machine \({_SIZE} total\)", re.MULTILINE)
_NODE = re.compile(rf"NUMANode L#\d+ \(P#(\d{{1,3}}) {_SIZE}\)")
_UNIT = re.compile(r"\bPU L#\d+ \(P#(\d{1,4})\)")
_PACKAGE = re.compile(r"^\s*Package L#\d+", re.MULTILINE)
_MODEL = re.compile(
    r"\bmodel: ((?:AMD|Intel|Ampere)\b[^\n]{0,120}?)(?: s)? (?:bits|type|cache|speed)\b"
)
_COUNTED = re.compile(
    r"^[ \t]*Info: (?:(\d)x )?(?:(\d{1,3})-core )?[^\n]{0,40}\bmodel: ", re.MULTILINE
)
_MEMORY = re.compile(rf"\b(?:Memory|RAM): (?:total: )?(?:[\d.]+ ?[MGT]i?B/)?{_SIZE}")
_CARD = re.compile(r"^[ \t]*Device-\d+: (NVIDIA|AMD)[^\n\[]{0,80}\[([^\]\n]{2,80})\]", re.MULTILINE)
_DRIVER = re.compile(r"\bdriver: nvidia v: (\d{3}(?:\.\d+){1,2})")
_MODULE = re.compile(rf"^\s*(?:(\d{{1,3}})\s+)?Size: {_SIZE}\s*$", re.MULTILINE)
_VERSION = re.compile(r"^\s*Version: ((?:Intel|INTEL|AMD|Ampere)\S* \S.*?)\s*$", re.MULTILINE)


def normalise_lstopo(text: str) -> tuple[dict[str, str], int | None]:
    """Return memory and nodes of lstopo as the kernel's files, and the number of packages."""
    texts: dict[str, str] = {}
    machine = _MACHINE.search(text)
    size = _read_bytes(machine[1], machine[2]) if machine else None
    if size:
        texts["meminfo.txt"] = f"MemTotal: {size // 1024} kB"
    texts |= {"numactl-hardware.txt": nodes} if (nodes := _list_nodes(text)) else {}
    return texts, len(_PACKAGE.findall(text)) or None


def _list_nodes(text: str) -> str:
    """Return the nodes as numactl prints them; nothing where lstopo was cut to fewer levels."""
    matches = list(_NODE.finditer(text))[:_MAX_NODES]
    ends = [*(match.start() for match in matches[1:]), len(text)]
    lines = []
    for match, end in zip(matches, ends, strict=True):
        cpus = _UNIT.findall(text[match.end() : end])
        size = _read_bytes(match[2], match[3]) or 0
        lines += [
            f"node {match[1]} cpus: {' '.join(cpus)}",
            f"node {match[1]} size: {size >> 20} MB",
        ]
    return "\n".join(lines) if _UNIT.search(text) else ""


def normalise_inxi(text: str) -> tuple[dict[str, str], list[Row], str | None]:
    """Return processor and memory of inxi as the kernel's files, its GPUs, and the driver."""
    texts: dict[str, str] = {}
    model, memory, driver = (one.search(text) for one in (_MODEL, _MEMORY, _DRIVER))
    if model:
        texts["cpuinfo.txt"] = f"model name\t: {model[1]}\n"
    counted = _COUNTED.search(text)
    if counted:
        texts |= _count_cores(counted[1], counted[2], 2 if re.search(r"\bMT\b", text) else 1)
    size = _read_bytes(memory[1], memory[2]) if memory else None
    if size:
        texts["meminfo.txt"] = f"MemTotal: {size // 1024} kB"
    rows = [
        {"index": str(n), "name": f"{card[1]} {card[2]}", "vendor": card[1].lower()}
        for n, card in enumerate(_CARD.finditer(text))
        if re.search(r"\d", card[2])
    ]
    return texts, rows[:64], driver[1] if driver else None


def count_processors(text: str) -> int | None:
    """Return how many processors inxi names: "Info: 2x 64-core model: ..."."""
    match = _COUNTED.search(text)
    return (parse_int(match[1]) or 1) if match else None


def normalise_modules(text: str) -> tuple[dict[str, str], int | None]:
    """Return memory and processor of lines of dmidecode, `sort | uniq -c` or not."""
    texts: dict[str, str] = {}
    sizes = [
        (parse_int(match[1] or "1") or 1) * (_read_bytes(match[2], match[3]) or 0)
        for match in _MODULE.finditer(text)
    ]
    if sum(sizes):
        texts["meminfo.txt"] = f"MemTotal: {sum(sizes) // 1024} kB"
    models = _VERSION.findall(text)
    if models:
        texts["cpuinfo.txt"] = f"model name\t: {models[0][:128]}\n"
        cores, threads = (_find_count(text, what) for what in ("Core", "Thread"))
        each = threads // cores if cores and threads else 1
        texts |= _count_cores(str(len(models)), str(cores or ""), each)
    return texts, len(models) or None


def _find_count(text: str, what: str) -> int | None:
    match = re.search(rf"^\s*{what} Count: (\d{{1,4}})\s*$", text, re.MULTILINE)
    return parse_int(match[1]) if match else None


def _count_cores(sockets: str | None, cores: str | None, threads: int) -> dict[str, str]:
    places = locate_cpus(
        sockets=parse_int(sockets or "1"), cores=parse_int(cores or ""), threads=threads
    )
    return {"lscpu_e.txt": places} if places else {}


def _read_bytes(digits: str, unit: str) -> int | None:
    amount = parse_leading_decimal(digits)
    return round(amount * _UNITS[unit.upper()]) if amount else None
