"""Disks and network cards."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts.machine import DiskFacts
    from kimi_prov.contract.documents.facts.quote import NicFacts
    from kimi_prov.on_host.system.machine import Machine

_NO_DISK = re.compile(r"(loop|ram|zram|sr|fd|dm-|md|nbd)\d*")
_SECTOR = 512
_RATE = re.compile(r"([\d.]+) Gb/sec")


def list_disks(machine: Machine) -> list[DiskFacts]:
    """Return disks with their kind and size; only a measurement gives their speed."""
    found: list[DiskFacts] = []
    for path in machine.glob("/sys/block/*"):
        name = path.rsplit("/", 1)[1]
        sectors = machine.read_int(f"{path}/size")
        if _NO_DISK.fullmatch(name) or not sectors:
            continue
        model = machine.read(f"{path}/device/model")
        found.append(
            {
                "name": name,
                "kind": _find_kind(name, machine.read_int(f"{path}/queue/rotational")),
                "size_bytes": sectors * _SECTOR,
                "model": model.strip() if model else None,
                "read_bytes_per_s": None,
            }
        )
    return found


def _find_kind(name: str, rotational: int | None) -> str | None:
    """Return nvme, ssd, hdd or virtual; a virtual disk's own report is not reliable."""
    if name.startswith("nvme"):
        return "nvme"
    if name.startswith(("vd", "xvd")):
        return "virtual"
    return None if rotational is None else "hdd" if rotational else "ssd"


def list_nics(machine: Machine) -> list[NicFacts]:
    """Return network cards without bridges and tunnels; speed in bits a second, None while down."""
    found: list[NicFacts] = []
    for path in machine.glob("/sys/class/net/*"):
        if not machine.exists(f"{path}/device"):
            continue
        name = path.rsplit("/", 1)[1]
        found.append(
            {
                "name": name,
                "kind": "infiniband" if machine.read(f"{path}/type") == "32" else "ethernet",
                "speed_bits_per_s": read_link_speed(machine, name),
                "up": machine.read(f"{path}/operstate") == "up",
            }
        )
    for path in machine.glob("/sys/class/infiniband/*/ports/*"):
        words = path.split("/")
        found.append(
            {
                "name": f"{words[-3]}/{words[-1]}",
                "kind": "infiniband",
                "speed_bits_per_s": read_rdma_rate(machine, path),
                "up": "ACTIVE" in (machine.read(f"{path}/state") or ""),
            }
        )
    return found


def read_link_speed(machine: Machine, name: str) -> int | None:
    """Return the speed of an interface in bits a second; the kernel says -1 where it has none."""
    speed = machine.read_int(f"/sys/class/net/{name}/speed")
    return speed * 10**6 if speed and speed > 0 else None


def read_rdma_rate(machine: Machine, port: str) -> int | None:
    """Return the rate of a port of an RDMA device in bits a second: `400 Gb/sec (4X NDR)`."""
    rate = _RATE.match(machine.read(f"{port}/rate") or "")
    return round(float(rate.group(1)) * 1e9) if rate else None
