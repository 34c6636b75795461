"""Memory: sizes from the kernel; modules from the firmware, which only root can read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kimi_prov.contract.numbers import parse_int, parse_leading_int
from kimi_prov.on_host.system.machine import Machine, parse_fields

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts.machine import CgroupFacts, DimmFacts, MemoryFacts

# dmidecode 3.7 writes GiB where older ones write GB; both mean powers of two.
_UNITS = {"k": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
# Manufacturers in the memory slots of virtual machines.
_VIRTUAL = (
    "QEMU",
    "Google",
    "Amazon EC2",
    "Red Hat",
    "Microsoft Corporation",
    "VMware Virtual RAM",
    "Alibaba Cloud",
    "Xen",
)
_WIDTH_BYTES = 8
_UNLIMITED = 1 << 60
# How boards name a slot: by node and channel (`P0 CHANNEL A`, `P1_Node1_Channel0_Dimm0`), by
# processor, letter of the channel and number of the slot on it (`P1-DIMMA1`, `CPU0_A0`), by the
# slot's number before the letter (`PROC 1 DIMM 1D`), or, with one processor, by letter and number
# alone (`DIMM_A1`). `PROC 1 DIMM 1` and `A1` name no channel.
_NAMES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"((?:P\d+_)?NODE\s*_?\d+|P\d+|CPU\d+)[ _]*CHANNEL\s*_?([A-P](?![A-Z])|\d+)",
        r"(?:CPU|PROC|P)\s*(\d+)[ _-]*(?:DIMM[ _-]*)?([A-P])(?![A-Z])\d?",
        r"(?:CPU|PROC|P)\s*(\d+)[ _-]*DIMM[ _-]*\d+([A-P])(?![A-Z])",
        r"^(DIMM)[ _-]*([A-P])\d+$",
    )
)


def describe_memory(machine: Machine, shm_bytes: int | None) -> MemoryFacts:
    """Return bytes of memory, swap and /dev/shm, the modules, and our control group's limit."""
    info = parse_fields(machine.read("/proc/meminfo"), ":")

    def size(key: str) -> int | None:
        kilobytes = parse_leading_int(info.get(key))
        return None if kilobytes is None else kilobytes * 1024

    def count(key: str) -> int | None:
        return parse_int(info.get(key))

    total = size("MemTotal")
    slots = parse_modules(machine.run(["dmidecode", "-t", "17"]))
    filled = [slot for slot in slots if slot["size_bytes"]] if slots else None
    populated, channels = _count_channels(slots or [])
    return {
        "total_bytes": total,
        "available_bytes": size("MemAvailable"),
        "swap_total_bytes": size("SwapTotal"),
        "hugepages_total": count("HugePages_Total"),
        "hugepages_free": count("HugePages_Free"),
        "hugepage_bytes": size("Hugepagesize"),
        "hugepages_1g": machine.read_int(
            "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"
        ),
        "shm_size_bytes": shm_bytes,
        "cgroup_limit_bytes": _read_cgroup_limit(machine, total),
        "dimms": filled or None,
        "slots_total": len(slots) if slots else None,
        "channels_populated": populated,
        "channels_total": channels,
        "bandwidth_bytes_per_s": {
            "measured": None,
            "theoretical": _compute_theoretical(filled or [], populated),
        },
    }


def parse_modules(text: str | None) -> list[DimmFacts] | None:
    """Parse `dmidecode -t 17`: every slot, an empty one with size 0. None where it has none.

    A virtual machine has one slot with its whole memory and no speed: that is no module.
    """
    found: list[DimmFacts] = []
    for block in (text or "").split("\n\n"):
        if "Memory Device" not in block:
            continue
        row = parse_fields(block, ":")
        if str(row.get("Manufacturer")).startswith(_VIRTUAL):
            continue
        speed = parse_leading_int(row.get("Speed"))
        found.append(
            {
                "size_bytes": _parse_size(row.get("Size")),
                "type": row.get("Type"),
                "speed_mt_s": speed,
                "configured_mt_s": parse_leading_int(
                    row.get("Configured Memory Speed") or row.get("Configured Clock Speed")
                )
                or speed,
                "locator": row.get("Locator"),
                "bank": row.get("Bank Locator"),
            }
        )
    return found or None


def _count_channels(slots: list[DimmFacts]) -> tuple[int | None, int | None]:
    """Return channels with a module and all channels; None where unknown."""
    every, filled = set(), set()
    for slot in slots:
        place = _find_slot(slot)
        if place is None:
            return None, None
        every.add(place)
        if slot["size_bytes"]:
            filled.add(place)
    return (len(filled), len(every)) if every else (None, None)


def _find_slot(slot: DimmFacts) -> tuple[str, ...] | None:
    """Return processor and channel of a slot, by the bank first; None where unknown."""
    for pattern in _NAMES:
        for name in (slot["bank"], slot["locator"]):
            match = pattern.search(name or "")
            if match is not None:
                return tuple(part.upper() for part in match.groups())
    return None


def _compute_theoretical(filled: list[DimmFacts], populated: int | None) -> int | None:
    """Return bytes a second: eight a transfer and channel, at the slowest module's speed."""
    told = [slot["configured_mt_s"] for slot in filled]
    speeds = [speed for speed in told if speed is not None]
    if not populated or not speeds or len(speeds) < len(told):
        return None
    return int(populated * min(speeds)) * 10**6 * _WIDTH_BYTES


def _parse_size(text: str | None) -> int | None:
    if text is None or text.startswith("Unknown"):
        return None
    match = re.match(r"([0-9]{1,18}) ([kMGT])i?B", text)
    return int(match.group(1)) * _UNITS[match.group(2)] if match else 0


def _read_cgroup_limit(machine: Machine, total: int | None) -> int | None:
    """Return the limit at the top of the visible hierarchy; None where there is none."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = machine.read_int(path)
        if limit is not None and limit < min(_UNLIMITED, total or _UNLIMITED):
            return limit
    return None


def read_cgroup(machine: Machine) -> CgroupFacts:
    """Return limits of our group and all above it: bytes of memory, CPUs by time; or None."""
    line = next(
        (row for row in (machine.read("/proc/self/cgroup") or "").splitlines() if row[:3] == "0::"),
        "0::/",
    )
    folder = "/sys/fs/cgroup" + line[3:].rstrip("/")
    sizes: list[int] = []
    shares: list[float] = []
    while folder.startswith("/sys/fs/cgroup"):
        limit = machine.read_int(f"{folder}/memory.max")
        if limit is not None:
            sizes.append(limit)
        numbers = [parse_int(word) for word in (machine.read(f"{folder}/cpu.max") or "").split()]
        if len(numbers) == 2 and numbers[0] is not None and numbers[1] is not None:
            shares.append(numbers[0] / max(1, numbers[1]))
        folder = folder.rsplit("/", 1)[0]
    sizes += _read_v1_memory(machine)
    shares += _read_v1_cpus(machine)
    return {"memory_bytes": min(sizes, default=None), "cpus": min(shares, default=None)}


def _read_v1_memory(machine: Machine) -> list[int]:
    """Return the limit of version 1 at the top of the visible hierarchy: in a container our own."""
    limit = machine.read_int("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    return [limit] if limit is not None and limit < _UNLIMITED else []


def _read_v1_cpus(machine: Machine) -> list[float]:
    quota = machine.read_int("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = machine.read_int("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return [quota / period] if quota and period and quota > 0 and period > 0 else []
