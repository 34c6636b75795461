"""A server's own description of its parts: Redfish, of one system, or of its collections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.facts.dumps.devices import read_size_gib, read_whole
from kimi_prov.facts.dumps.processors import locate_cpus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.facts.dumps.gpus import Row

_MAX_PARTS = 4096
_MAX_DEPTH = 12
# Bytes of a MiB, as modules are given.
_MIB = 1 << 20


def normalise(document: Any) -> tuple[dict[str, str], list[Row]]:  # noqa: ANN401  (any JSON)
    """Return processors and memory in the form of the kernel's files, and the GPUs."""
    parts = [part for part, _ in zip(_walk(document, 0), range(_MAX_PARTS), strict=False)]
    processors = [part for part in parts if "ProcessorType" in part and _is_present(part)]
    modules = [part for part in parts if "CapacityMiB" in part and _is_present(part)]
    summary = next((part for part in parts if "ProcessorSummary" in part), {})
    texts = _describe_processors(processors, _get_dict(summary, "ProcessorSummary"))
    sizes = [read_whole(part["CapacityMiB"]) or 0 for part in modules]
    memories = (_get_dict(part, "MemorySummary") for part in parts)
    sizes_gib = [read_size_gib(row.get("TotalSystemMemoryGiB")) for row in memories]
    total = sum(sizes) * _MIB or max((size or 0 for size in sizes_gib), default=0)
    if total:
        texts["meminfo.txt"] = f"MemTotal: {total // 1024} kB"
    if any(sizes):
        texts["dmidecode.txt"] = "\n\n".join(map(_describe_module, modules))
    return texts, list(_list_gpus(processors))


def _walk(value: Any, depth: int) -> Iterator[dict[str, object]]:  # noqa: ANN401  (any JSON)
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value:
        if isinstance(child, (dict, list)):
            yield from _walk(child, depth + 1)


def _get_dict(part: dict[str, object], key: str) -> dict[str, object]:
    value = part.get(key)
    return value if isinstance(value, dict) else {}


def _is_present(part: dict[str, object]) -> bool:
    return _get_dict(part, "Status").get("State") not in ("Absent", "Disabled")


def _describe_processors(
    parts: list[dict[str, object]], summary: dict[str, object]
) -> dict[str, str]:
    own = [part for part in parts if part.get("ProcessorType") == "CPU"]
    first = own[0] if own else {}
    model = str(first.get("Model") or summary.get("Model") or "").strip()
    if not model:
        return {}
    texts = {"cpuinfo.txt": f"model name\t: {model[:128]}\n"}
    sockets = len(own) or read_whole(summary.get("Count")) or 1
    cores = read_whole(first.get("TotalCores"))
    threads = read_whole(first.get("TotalThreads"))
    if cores is None:
        together = read_whole(summary.get("CoreCount"))
        cores = together // sockets if together else None
        logical = read_whole(summary.get("LogicalProcessorCount"))
        threads = logical // sockets if logical else None
    per_core = threads // cores if cores and threads else 1
    places = locate_cpus(sockets=sockets, cores=cores, threads=per_core)
    return {**texts, "lscpu_e.txt": places} if places else texts


def _describe_module(part: dict[str, object]) -> str:
    """Describe a module as dmidecode does."""
    size = read_whole(part["CapacityMiB"])
    speed = read_whole(part.get("OperatingSpeedMhz"))
    location = str(part.get("DeviceLocator") or part.get("Name") or "")[:64]
    kind = str(part.get("MemoryDeviceType") or "")[:16]
    lines = ["Memory Device", f"\tSize: {size} MB", f"\tType: {kind}", f"\tLocator: {location}"]
    lines += [f"\tSpeed: {speed} MT/s"] if speed else []
    return "\n".join(lines)


def _list_gpus(parts: list[dict[str, object]]) -> Iterator[Row]:
    cards = [part for part in parts if part.get("ProcessorType") in ("GPU", "Accelerator")]
    for index, part in enumerate(cards[:64]):
        maker = str(part.get("Manufacturer") or "")
        row = {
            "index": str(index),
            "name": str(part.get("Model") or "GPU")[:128],
            "vendor": "amd" if "AMD" in maker or "Advanced Micro" in maker else "nvidia",
        }
        memory = part.get("ProcessorMemory")
        sizes = [
            read_whole(one.get("CapacityMiB")) or 0
            for one in (memory if isinstance(memory, list) else ())
            if isinstance(one, dict) and one.get("MemoryType") != "L1Cache"
        ]
        if any(sizes):
            row["memory.total"] = f"{max(sizes)} MiB"
        yield row
