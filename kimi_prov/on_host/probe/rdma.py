"""RDMA devices, InfiniBand and RoCE, and which GPUs are near them on the bus.

The files are described in the kernel's Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import ipaddress
import re
from itertools import takewhile
from typing import TYPE_CHECKING

from kimi_prov.on_host.probe import devices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.contract.documents.facts.gpus import GpuFacts
    from kimi_prov.contract.documents.facts.network import BusPath, RdmaFacts
    from kimi_prov.on_host.system.machine import Machine

_CLASS = "/sys/class/infiniband"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")
_STATE = re.compile(r"\d+: ([A-Z_]+)")
_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_V2 = "RoCE v2"


def list_rdma(machine: Machine, gpus: Sequence[GpuFacts]) -> list[RdmaFacts]:
    """Return each port of each device; the GID index is for RoCE, None for InfiniBand.

    `gpus`: rows with `index` and `pci`; each port has the path on the bus to each of them.
    """
    found: list[RdmaFacts] = []
    for path in machine.glob(f"{_CLASS}/*/ports/*"):
        device, _, number = path[len(_CLASS) + 1 :].split("/")
        if not _NAME.fullmatch(device) or not number.isdigit():
            continue
        layer = machine.read(f"{path}/link_layer")
        state = _STATE.match(machine.read(f"{path}/state") or "")
        gid = _find_gid(machine, path) if layer == "Ethernet" else None
        home = machine.resolve(f"{_CLASS}/{device}/device")
        found.append(
            {
                "device": device,
                "port": int(number),
                "link_layer": layer,
                "state": state.group(1) if state else None,
                "speed_bits_per_s": devices.read_rdma_rate(machine, path),
                "gid_index": gid[0] if gid else None,
                "gid_type": gid[1] if gid else None,
                "netdev": _find_netdev(machine, path, gid, f"{_CLASS}/{device}", int(number)),
                "numa_node": machine.node(f"{home}/numa_node"),
                "gpus": [
                    {"index": gpu["index"], "path": distance}
                    for gpu in gpus
                    if (distance := _describe_distance(machine, home, str(gpu.get("pci") or "")))
                ],
            }
        )
    return found


def _find_gid(machine: Machine, path: str) -> tuple[int, str] | None:
    """Return index and type of the GID to use: RoCE v2 if there is one, IPv4 before IPv6.

    A v2 packet is routed and marked like any IP packet; a link-local GID reaches no further.
    """
    found = []
    for file in machine.glob(f"{path}/gids/*"):
        number = file.rsplit("/", 1)[1]
        kind = machine.read(f"{path}/gid_attrs/types/{number}")
        try:
            address = ipaddress.IPv6Address(machine.read(file) or "")
        except ValueError:
            continue
        # Reading the type of an unused entry fails.
        if kind and int(address) and number.isdigit():
            rank = 2 if address.ipv4_mapped else 0 if address.is_link_local else 1
            found.append((kind == _V2, rank, -int(number), kind))
    if not found:
        return None
    _, _, turned, kind = max(found)
    return -turned, kind


def _find_netdev(
    machine: Machine, path: str, gid: tuple[int, str] | None, device: str, port: int
) -> str | None:
    """Return the interface of the port: by its GID, else by its number on the device."""
    named = machine.read(f"{path}/gid_attrs/ndevs/{gid[0]}") if gid else None
    if named:
        return named
    names = [place.rsplit("/", 1)[1] for place in machine.glob(f"{device}/device/net/*")]
    by_port = [
        name for name in names if machine.read_int(f"/sys/class/net/{name}/dev_port") == port - 1
    ]
    return next(iter(by_port or names), None)


def _describe_distance(machine: Machine, home: str, address: str) -> BusPath | None:
    """Return the path between a device and a GPU in the words of `nvidia-smi topo -m`.

    PIX: one switch; PXB: several; PHB: the host bridge; NODE: host bridges of one NUMA node; SYS:
    from one processor to another. A virtual machine shows the bus that its hypervisor made up.
    """
    short = address.lower()[-12:]
    other = f"/sys/bus/pci/devices/{short}"
    if not _ADDRESS.fullmatch(short) or not machine.exists(other):
        return None
    ours, theirs = _list_buses(home), _list_buses(machine.resolve(other))
    if not ours or not theirs:
        return None
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs))
    shared = len(list(pairs))
    if shared > 1:
        # A switch has one port towards its processor, and below it one port for each device.
        return "PIX" if max(len(ours), len(theirs)) - shared <= 2 else "PXB"
    if shared == 1:
        return "PHB"
    nodes = {machine.node(f"{place}/numa_node") for place in (home, other)}
    return "NODE" if len(nodes) == 1 and None not in nodes else "SYS"


def _list_buses(place: str) -> list[str]:
    """Return host bridge, bridges and device of a path: pci0000:00, 0000:00:01.0, 0000:01:00.0."""
    words = place.split("/")
    start = next((at for at, word in enumerate(words) if word.startswith("pci")), len(words))
    return [word for word in words[start:] if word.startswith("pci") or _ADDRESS.fullmatch(word)]
