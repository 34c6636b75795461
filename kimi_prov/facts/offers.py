"""Machines that can be bought, made from the catalogue's parts, in series of growing size.

No vendor offered them: each is a spec sheet made from the catalogue. A ladder is a series of one
kind of machine; its machines differ in the number of GPUs, or in memory.

Decides: which machines `--suggest` tries.
Held by: tests/unit/commands/check/test_check_sizing.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kimi_prov.facts import spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.catalog.hardware import Cpu, Gpu
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts

Kind = Literal["gpu", "hybrid", "cpu"]
# Cards are sold one by one. GPUs on a board with a switch are sold by four or eight; AMD's boards
# and NVIDIA's since Blackwell (compute capability 10) have eight.
_CARDS, _SWITCHED, _BOARD = (1, 2, 4, 8), (4, 8), (8,)
_BLACKWELL = 10.0
# Superchips are sold by the rack, with processors of their own; altered cards have no vendor.
_NOT_OFFERED = ("(per GPU)", "(modded)")
_HYBRID_GPUS = (1, 2)
# GB of a memory module; one for each channel.
_MODULES_GB = (32, 64, 96, 128)
_GPU_SERVER_MODULE_GB = 128
_MIN_SOCKETS = 2
_DISK = {"kind": "nvme", "size_gb": 3840, "count": 2, "read_gb_s": 7}
# A system for which every engine has a lock, and a driver that all of them can use.
_SYSTEM, _DRIVER = "debian-12", "580.159.04"


@dataclass(frozen=True)
class Offer:
    """One machine. `units` is its size in the ladder: GPUs of a GPU server, else GB of memory.

    `gpu_gb`: memory of its GPUs together.
    """

    kind: Kind
    name: str
    units: int
    gpu_gb: int
    sheet: dict[str, Any]

    def facts(self, catalogue: Catalogue) -> Facts:
        """Return the machine's facts; `origin` says that it was made from the catalogue."""
        facts = spec.make_facts(self.sheet, catalogue, "made from the catalogue's parts")
        facts["origin"]["kind"] = "suggested"
        return facts


def list_ladders(catalogue: Catalogue) -> Iterator[list[Offer]]:
    """Yield the machines of each kind and part, the smallest first."""
    hosts = _choose_hosts(catalogue)
    if not hosts:
        return
    gpus = [
        gpu
        for gpu in catalogue.gpus
        if not gpu.shared_memory and not gpu.name.endswith(_NOT_OFFERED)
    ]
    for gpu in gpus:
        yield [_make_gpu_offer(gpu, count, hosts[0]) for count in _list_counts(gpu)]
    for cpu in hosts:
        for sockets in range(1, min(cpu.max_sockets, _MIN_SOCKETS) + 1):
            yield [_make_cpu_offer(cpu, sockets, module) for module in _MODULES_GB]
    for gpu in gpus:
        if _list_counts(gpu) == _CARDS:
            for count in _HYBRID_GPUS:
                yield [_make_hybrid_offer(gpu, count, hosts[0], module) for module in _MODULES_GB]


def _list_counts(gpu: Gpu) -> tuple[int, ...]:
    if gpu.vendor == "amd":
        return _BOARD
    if not gpu.nvswitch:
        return _CARDS
    return _BOARD if float(gpu.compute_capability) >= _BLACKWELL else _SWITCHED


def _choose_hosts(catalogue: Catalogue) -> list[Cpu]:
    """Return each generation's processor with the most bandwidth, if it has AMX or AVX512."""
    best: dict[str, Cpu] = {}
    for cpu in catalogue.cpus:
        wide = cpu.vector in ("amx", "avx512") and cpu.memory_channels and cpu.max_sockets > 1
        known = best.get(cpu.microarchitecture)
        if wide and (known is None or _rank_cpu(cpu) > _rank_cpu(known)):
            best[cpu.microarchitecture] = cpu
    return sorted(best.values(), key=_rank_cpu, reverse=True)


def _rank_cpu(cpu: Cpu) -> tuple[bool, float, int]:
    return cpu.vector == "amx", cpu.bandwidth_gb_s, cpu.cores


def _make_gpu_offer(gpu: Gpu, count: int, host: Cpu) -> Offer:
    sheet = _make_sheet(host, _MIN_SOCKETS, _GPU_SERVER_MODULE_GB)
    name = f"{count} x {gpu.name}"
    return Offer(
        "gpu", name, count, count * gpu.memory_gb, _add_name(sheet | _make_gpus(gpu, count), name)
    )


def _make_cpu_offer(cpu: Cpu, sockets: int, module: int) -> Offer:
    sheet = _make_sheet(cpu, sockets, module)
    size = _count_memory_gb(sheet)
    name = f"{sockets} x {cpu.name}, {size:,} GB"
    return Offer("cpu", name, size, 0, _add_name(sheet, name))


def _make_hybrid_offer(gpu: Gpu, count: int, host: Cpu, module: int) -> Offer:
    sheet = _make_sheet(host, _MIN_SOCKETS, module)
    size = _count_memory_gb(sheet)
    name = f"{count} x {gpu.name}, {_MIN_SOCKETS} x {host.name}, {size:,} GB"
    sheet |= _make_gpus(gpu, count)
    return Offer("hybrid", name, size, count * gpu.memory_gb, _add_name(sheet, name))


def _make_gpus(gpu: Gpu, count: int) -> dict[str, Any]:
    return {
        "gpus": {"model": gpu.name, "count": count},
        "software": {"os": _SYSTEM, "nvidia_driver": _DRIVER, "open_module": True},
    }


def _make_sheet(cpu: Cpu, sockets: int, module: int) -> dict[str, Any]:
    return {
        "schema": spec.SCHEMA,
        "cpu": {"model": cpu.name, "sockets": sockets},
        "memory": {"dimms": (cpu.memory_channels or 1) * sockets, "dimm_gb": module},
        "disks": [dict(_DISK)],
        "software": {"os": _SYSTEM},
    }


def _count_memory_gb(sheet: dict[str, Any]) -> int:
    size: int = sheet["memory"]["dimms"] * sheet["memory"]["dimm_gb"]
    return size


def _add_name(sheet: dict[str, Any], name: str) -> dict[str, Any]:
    return {**sheet, "name": name}
