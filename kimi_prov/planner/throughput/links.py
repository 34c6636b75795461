"""The link between hosts, from a machine's facts: its spec sheet, RDMA ports or network ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.facts.links import NAMES
from kimi_prov.planner.hosts import networks
from kimi_prov.planner.throughput.hosts import PORT_GBIT_S
from kimi_prov.planner.throughput.inputs import Link

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kimi_prov.facts.host import Host

_BITS = 8e9  # bits of a GB
_GBIT = 1e9


def find_link(host: Host) -> tuple[Link, str | None]:
    """Return the link from this host to the others, and what was assumed about it."""
    group = host.facts.get("group")
    sheet = group["link"] if group else None
    if sheet:
        return _read_link(sheet)
    ports = [row for row in networks.find_rdma_devices(host) if row.speed]
    if ports and ports[0].kind:
        return Link(ports[0].kind, sum(row.speed or 0 for row in ports) / _BITS), None
    best = max(_list_speeds(host), default=0.0)
    if best:
        return Link("ethernet", best / _BITS), (
            f"the hosts are joined by one port of {best / _GBIT:g} Gbit/s Ethernet"
        )
    return _read_link({"kind": "ethernet"})


def _read_link(link: Mapping[str, Any]) -> tuple[Link, str | None]:
    kind, speed = link["kind"], link.get("speed_bits_per_s")
    assumed = None
    if not speed:
        speed = PORT_GBIT_S[kind] * _GBIT
        assumed = f"a port of the link between the hosts: {speed / _GBIT:g} Gbit/s {NAMES[kind]}"
    return Link(kind, speed * int(link.get("count") or 1) / _BITS), assumed


def _list_speeds(host: Host) -> Iterator[float]:
    """Yield the speed of each network port that is not down, where it is known."""
    yield from (float(row.speed) for row in host.interfaces if row.speed and not row.down)
    for row in host.facts.get("nics") or ():
        speed = row.get("speed_bits_per_s")
        if row.get("up") is not False and speed:
            yield float(speed)
