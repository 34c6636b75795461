"""Whether a RAM disk holds the weights; where none does, whether they fill the page cache.

Decides: the RAM disk, or the page cache.
Applied by: roles/ram_disk.
Held by: tests/unit/planner/storage/test_ram_disk.py, tests/lab/test_weights.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract import paths, unit_names
from kimi_prov.contract.cpu_lists import format_list
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.planner.decisions import RamDisk

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan.weights import PageCachePlan, RamDiskPlan
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import BoundMemory, ConvertedExperts, Weights
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings

_CONVERTED = "the experts are read from the converted files, once; most of the weights are not read"
_PREPARED = (
    "the engine reads its prepared weights, and the checkpoint only where they are not there yet"
)
_MIB = 1 << 20


def choose_ram_disk(
    host: Host,
    settings: Settings,
    weights: Weights,
    bound: BoundMemory,
    findings: Findings,
    *,
    converted: ConvertedExperts | None = None,
    prepared: bool = False,
) -> RamDisk:
    """Choose a tmpfs only where memory holds the weights in it and the engine beside it.

    Its pages are spread evenly over all nodes, so each node has to hold its part of them beside
    the memory that the engine binds to that node.
    """
    engine_bytes = bound.total
    # The size of unpinned weights is computed from the architecture: leave room for other files.
    margin = weights.size_bytes // (100 if weights.pinned else 33) + 64 * _MIB
    size = -(-(weights.size_bytes + margin) // _MIB) * _MIB
    in_all = size + engine_bytes <= host.memory_bytes
    fits = in_all and _has_room_on_nodes(host, size, bound)
    need = (
        f"{format_bytes(size)} for the RAM disk and {format_bytes(engine_bytes)} for engine and "
        "system"
    )
    have = f"of {format_bytes(host.memory_bytes or None)}"
    setting = settings.ram_disk
    if setting == "never":
        return _make_disabled("the inventory says never (kimi_ram_disk)")
    if setting == "auto" and converted is not None:
        return _make_disabled(_CONVERTED)
    if setting == "auto" and prepared:
        return _make_disabled(_PREPARED)
    if setting == "auto" and not fits:
        short = (
            "a NUMA node does not hold its part"
            if in_all
            else "memory does not hold the weights twice"
        )
        return _make_disabled(f"{short}: {need}, {have}; the page cache serves")
    if not fits:
        findings.add(
            "ram_disk.memory",
            observed=format_bytes(host.memory_bytes or None),
            required=need,
            fix="set kimi_ram_disk to auto or never: the page cache serves a restart as well",
        )
    swap_out = host.swap_bytes and host.kernel < (6, 4)
    if swap_out:
        findings.add(
            "ram_disk.swap",
            observed=f"{format_bytes(host.swap_bytes)} of swap, kernel {host.system.kernel}",
            required="no swap, or kernel 6.4 for the mount option noswap",
            fix="swapoff -a and remove swap from /etc/fstab, or run a newer kernel",
        )
    huge = _has_huge_pages(host, settings)
    return _make_enabled(host, size, f"memory holds it: {need}, {have}", huge=huge)


def make_document(
    ram_disk: RamDisk, host: Host, files_dir: str, warm: PageCachePlan
) -> RamDiskPlan:
    """Make the plan's `ram_disk`; `files_dir`: directory of its files; `warm`: the plan's section.

    The unit `service` reads the weights into memory. `units` are all that this plan needs for it,
    `absent_units` those that only another plan needs.
    """
    service, units = None, []
    if ram_disk.enabled:
        service, units = unit_names.STAGE, [unit_names.RAM_MOUNT, unit_names.STAGE]
    elif warm["enabled"]:
        service, units = unit_names.WARM, [unit_names.WARM]
    every = (unit_names.STAGE, unit_names.RAM_MOUNT, unit_names.WARM)
    return {
        "enabled": ram_disk.enabled,
        "size_bytes": ram_disk.size_bytes,
        "reason": ram_disk.reason,
        "path": paths.RAM,
        "options": ram_disk.options,
        "workers": max(1, min(8, len(host.primary))),
        "files_dir": files_dir,
        "service": service,
        "units": units,
        "absent_units": [name for name in every if name not in units],
    }


def make_page_cache_document(
    ram_disk: RamDisk,
    host: Host,
    weights: Weights,
    engine_bytes: int,
    converted: ConvertedExperts | None,
    *,
    prepared: bool = False,
) -> PageCachePlan:
    """Make the plan's `warm`: without a RAM disk, files that fit are read into the page cache.

    `engine_bytes`: memory of engine and system while it serves; the page cache shrinks by it.
    """
    if ram_disk.enabled:
        return {"enabled": False, "reason": "the RAM disk holds the weights"}
    if converted is not None:
        return {"enabled": False, "reason": _CONVERTED}
    if prepared:
        return {"enabled": False, "reason": _PREPARED}
    if weights.size_bytes > host.memory_bytes - host.reserve_bytes:
        return {"enabled": False, "reason": "the weights are larger than memory"}
    kept = max(0, min(weights.size_bytes, host.memory_bytes - engine_bytes))
    again = weights.size_bytes - kept
    restart = (
        f"a restart finds at most {format_bytes(kept)} there and reads {format_bytes(again)} from "
        "disk again"
        if again
        else "a restart finds them there"
    )
    return {
        "enabled": True,
        "reason": f"no RAM disk, which would hold {format_bytes(weights.size_bytes)} for good: the "
        f"files are read ahead into the page cache, which gives way to the engine; {restart}",
    }


def _has_room_on_nodes(host: Host, size: int, bound: BoundMemory) -> bool:
    """Whether each node to which the engine binds memory also holds its part of the files."""
    if not bound.nodes or not host.nodes:
        return True
    part = size // len(host.nodes) + bound.share
    part += host.reserve_bytes // len(host.nodes)
    return all(part <= node.memory_bytes for node in host.nodes if node.id in bound.nodes)


def _make_disabled(reason: str) -> RamDisk:
    return RamDisk(enabled=False, size_bytes=0, reason=reason, options="")


def _has_huge_pages(host: Host, settings: Settings) -> bool:
    """Whether files lie in pages of 2 MiB: a card's driver has 512 times fewer to register.

    Registered copies were 3 times as fast (docs/reference/loaders.md). A machine that serves keeps
    the pages that it has. The option `within_size` gave small pages to files that are written in
    steps of 1 MiB, as they are here (Linux 6.18, by hand).
    """
    kept = settings.served.get("ram_pages") if settings.served else None
    return host.tunables.thp is not None and kept != "small"


def _make_enabled(host: Host, size: int, reason: str, *, huge: bool) -> RamDisk:
    """Describe a RAM disk of `size` bytes with its mount options.

    The options name nodes as a range, because a comma separates options.
    """
    options = [f"size={size}", "mode=0755"]
    if host.kernel >= (6, 4):
        options.append("noswap")
    if huge:
        options.append("huge=always")
    nodes = [node.id for node in host.nodes]
    if len(nodes) > 1:
        ranges = format_list(nodes)
        # Nodes with a gap between their ids need a comma; without a list, all nodes are used.
        options.append(f"mpol=interleave:{ranges}" if "," not in ranges else "mpol=interleave")
    return RamDisk(enabled=True, size_bytes=size, reason=reason, options=",".join(options))
