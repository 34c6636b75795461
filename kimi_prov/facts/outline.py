"""The outline of a machine: the parts that decide its speed, without names of its owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract.gpu_rows import get_gpu_memory, get_gpu_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts

# A sheet has the size of the modules, a machine what its firmware and kernel leave of that.
_MAX_MEMORY_DIFFERENCE = 0.1


def make_outline(facts: Facts) -> dict[str, Any]:
    """Return processors, memory and GPUs of a facts document; null is unknown."""
    cpu, memory = facts.get("cpu") or {}, facts.get("memory") or {}
    gpus: dict[tuple[Any, Any], int] = {}
    for row in facts.get("gpus") or ():
        kind = (get_gpu_name(row), get_gpu_memory(row))
        gpus[kind] = gpus.get(kind, 0) + 1
    return {
        "processor": cpu.get("catalogue_name") or cpu.get("model"),
        "sockets": cpu.get("sockets"),
        "cores": cpu.get("cores"),
        "memory_bytes": memory.get("total_bytes"),
        "memory_channels": memory.get("channels_populated"),
        "memory_theoretical_bytes_per_s": (memory.get("bandwidth_bytes_per_s") or {}).get(
            "theoretical"
        ),
        "gpus": [
            {"model": name, "memory_bytes": size, "count": count}
            for (name, size), count in gpus.items()
        ],
    }


def list_differences(
    one: Mapping[str, Any], other: Mapping[str, Any], catalogue: Catalogue
) -> list[str]:
    """Return the parts in which two outlines differ; an unknown part never differs.

    The catalogue resolves different names of one part.
    """
    processors = [_find_processor(row, catalogue) for row in (one, other)]
    pairs = [("processor", *processors)]
    pairs += [(key, one.get(key), other.get(key)) for key in ("sockets", "cores")]
    differences = [
        f"{label}: {there} there, {here} here"
        for label, there, here in pairs
        if there and here and there != here
    ]
    sizes = [float(row.get("memory_bytes") or 0) for row in (one, other)]
    if all(sizes) and abs(sizes[0] / sizes[1] - 1) > _MAX_MEMORY_DIFFERENCE:
        there, here = (f"{size / 2**30:.0f} GiB" for size in sizes)
        differences.append(f"memory: {there} there, {here} here")
    there, here = (_format_cards(row, catalogue) for row in (one, other))
    if there != here:
        differences.append(f"GPUs: {there} there, {here} here")
    return differences


def _find_processor(outline: Mapping[str, Any], catalogue: Catalogue) -> Any:  # noqa: ANN401
    name = outline.get("processor")
    known = catalogue.find_cpu(str(name)) if name else None
    return known.name if known else name


def _format_cards(outline: Mapping[str, Any], catalogue: Catalogue) -> str:
    counted: dict[str, int] = {}
    for row in outline["gpus"]:
        known = catalogue.find_gpu(str(row["model"]), row["memory_bytes"])
        name = known.name if known else str(row["model"])
        counted[name] = counted.get(name, 0) + int(row["count"])
    return ", ".join(f"{count} x {name}" for name, count in sorted(counted.items())) or "none"
