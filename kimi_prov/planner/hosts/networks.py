"""The interface and the RDMA devices of a host that carry its group's traffic."""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan.group import GroupRdma
    from kimi_prov.facts.host import Host, Interface, Rdma

ROCE_V2 = "RoCE v2"


def find_interface(host: Host, address: str | None) -> Interface | None:
    """Find the interface that has an address; None where no interface has it."""
    try:
        target = ipaddress.ip_address(address or "")
    except ValueError:
        return None
    return next((row for row in host.interfaces if target in [a.ip for a in row.addresses]), None)


def list_interface_addresses(host: Host, address: str | None) -> list[str]:
    """List every address of the interface that has this address, this one first.

    A host may connect from any of them: Gloo takes the first address of the interface that it gets,
    and the kernel chooses an IPv6 address.
    """
    interface = find_interface(host, address)
    own = [address] if address else []
    return list(
        dict.fromkeys([*own, *(str(a.ip) for a in (interface.addresses if interface else ()))])
    )


def find_rdma_devices(host: Host) -> tuple[Rdma, ...]:
    """Find the active RDMA ports that NCCL shall use: the fastest of one kind, sorted by name.

    InfiniBand is preferred to RoCE, because an InfiniBand card is never the management card. Of the
    fastest ports, those near GPUs are used, where there are any.
    """
    for kind in ("infiniband", "roce"):
        active = [row for row in host.rdma if row.active and row.kind == kind]
        best = max((row.speed or 0 for row in active), default=0)
        fastest = [row for row in active if (row.speed or 0) == best]
        if fastest:
            near = [row for row in fastest if row.near_gpus]
            return tuple(sorted(near or fastest, key=lambda row: (row.device, row.port)))
    return ()


def make_rdma_document(host: Host) -> GroupRdma | None:
    """Make the plan's `group.rdma` of a host; None without GPUs, or without an RDMA device.

    `devices` have the names of NCCL_IB_HCA, with the port where a card has several. `gid_index` is
    null where the devices differ in it: NCCL then finds it by itself.
    """
    devices = find_rdma_devices(host) if host.gpu_bytes else ()
    if not devices or devices[0].kind is None:
        return None
    ports = Counter(row.device for row in host.rdma)
    indices = {row.gid_index if row.gid_type == ROCE_V2 else None for row in devices}
    return {
        "kind": devices[0].kind,
        "devices": [
            row.device if ports[row.device] == 1 else f"{row.device}:{row.port}" for row in devices
        ],
        "gid_index": indices.pop() if len(indices) == 1 else None,
    }
