"""The use of a target's memory: a bar for each kind of GPU and one for the host."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kimi_prov.contract.gpu_rows import get_gpu_memory
from kimi_prov.show.report import hosts
from kimi_prov.show.text.formats import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.contract.documents.check import CheckedTarget as Target
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.estimates import HostMemoryPart, MemoryPlan


_KINDS = ("weights", "cache", "overhead", "ramdisk")


@dataclass(frozen=True)
class Segment:
    """A part of a memory: `kind` is weights, cache, overhead, ramdisk or free."""

    kind: str
    label: str
    size: int


@dataclass(frozen=True)
class Bar:
    """The parts of one memory, in bytes. If `needed` is above `total`, they do not fit."""

    label: str
    total: int
    segments: tuple[Segment, ...]

    @property
    def needed(self) -> int:
        """The sum of all segments that are not free."""
        return sum(part.size for part in self.segments if part.kind != "free")


def build_bars(target: Target) -> list[Bar]:
    """Return the bars of GPUs, equal ones together, and of the host, in bytes."""
    plan, facts = target["plan"], target["facts"]
    found = plan["memory"]
    bars = []
    used = {index for row in plan["instances"] for index in row["gpus"]}
    if found["weights_bytes_per_gpu"] is not None:
        groups: dict[tuple[int, bool], list[int]] = {}
        for place, gpu in enumerate(facts.get("gpus") or ()):
            size = get_gpu_memory(gpu) or 0
            index = int(gpu.get("index", place))
            groups.setdefault((size, index in used), []).append(index)
        bars += [
            _build_gpu_bar(found, size, numbers, mine) for (size, mine), numbers in groups.items()
        ]
    # Memory that is not told has no bar.
    if found["host_ram_available_bytes"]:
        bars.append(_build_host_bar(plan))
    if hosts.count_target_hosts(target) > 1:
        return [replace(bar, label=f"In each host: {bar.label}") for bar in bars]
    return bars


def _build_gpu_bar(found: MemoryPlan, size: int, numbers: Sequence[int], mine: bool) -> Bar:  # noqa: FBT001
    label = f"GPU {_format_numbers(numbers)}" + (", each" if len(numbers) > 1 else "")
    if not mine:
        return Bar(f"{label}, not used", size, (Segment("free", "Free", size),))
    parts = [
        Segment("weights", "Weights", found["weights_bytes_per_gpu"] or 0),
        Segment(
            "cache", "Cache of conversations", max(0, found["kv_available_bytes_per_gpu"] or 0)
        ),
        Segment("overhead", "Engine's own", found["overhead_bytes_per_gpu"] or 0),
    ]
    return Bar(label, size, _add_free(parts, size))


def _build_host_bar(plan: MachinePlan) -> Bar:
    found, ram_disk = plan["memory"], plan["ram_disk"]
    needed = found["host_ram_required_bytes"]
    parts = [
        Segment(_get_kind(row), clean(row["name"]), int(row["bytes"]))
        for row in found.get("host_parts") or ()
    ]
    if not parts and found["weights_bytes_per_gpu"] is None:
        parts = [
            Segment("weights", "Weights", found["weights_bytes_total"]),
            Segment("cache", "Cache of conversations", found.get("kv_available_bytes") or 0),
        ]
    if ram_disk["enabled"] and not any(part.kind == "ramdisk" for part in parts):
        parts.append(Segment("ramdisk", "RAM disk", ram_disk["size_bytes"]))
    rest = needed - sum(part.size for part in parts)
    if rest > 0:
        parts.append(Segment("overhead", "Engine and system", rest))
    total = found["host_ram_available_bytes"]
    return Bar("Host memory", total, _add_free(parts, total))


def _get_kind(row: HostMemoryPart) -> str:
    return str(row["kind"]) if row.get("kind") in _KINDS else "overhead"


def _add_free(parts: Sequence[Segment], total: int) -> tuple[Segment, ...]:
    free = total - sum(part.size for part in parts)
    shown = [part for part in parts if part.size > 0]
    return (*shown, Segment("free", "Free", free)) if free > 0 else tuple(shown)


def _format_numbers(numbers: Sequence[int]) -> str:
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(str(number) for number in numbers)
