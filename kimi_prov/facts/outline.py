"""A machine in outline: what its speed depends on, and nothing that says whose it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# Total memory differs by some MiB between two boots.
_MEMORY_OFF = 0.02


def of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Give processors, memory and GPUs of a facts document; null is unknown."""
    cpu, memory = facts.get("cpu") or {}, facts.get("memory") or {}
    gpus: dict[tuple[Any, Any], int] = {}
    for row in facts.get("gpus") or ():
        kind = (row.get("model") or row.get("name_raw"), row.get("memory_bytes"))
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


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Say in which parts two outlines are of different machines; unknown differs from nothing."""
    found = [
        f"{label}: {one[key]} there, {other[key]} here"
        for key, label in (("processor", "processor"), ("sockets", "sockets"), ("cores", "cores"))
        if one.get(key) and other.get(key) and one[key] != other[key]
    ]
    sizes = [float(row.get("memory_bytes") or 0) for row in (one, other)]
    if all(sizes) and abs(sizes[0] / sizes[1] - 1) > _MEMORY_OFF:
        there, here = (f"{size / 2**30:.0f} GiB" for size in sizes)
        found.append(f"memory: {there} there, {here} here")
    cards = [_cards(row) for row in (one, other)]
    if cards[0] != cards[1]:
        found.append(f"GPUs: {cards[0]} there, {cards[1]} here")
    return found


def _cards(outline: Mapping[str, Any]) -> str:
    rows = sorted((str(row["model"]), int(row["count"])) for row in outline["gpus"])
    return ", ".join(f"{count} x {name}" for name, count in rows) or "none"
