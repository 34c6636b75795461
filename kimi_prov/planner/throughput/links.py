"""What joins hosts, from a machine's facts: as a sheet says, as RDMA or network ports are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.facts.links import NAMES
from kimi_prov.planner.throughput.hosts import PORT_GBIT_S
from kimi_prov.planner.throughput.inputs import Link

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kimi_prov.planner.throughput.inputs import LinkKind

_BITS = 8e9  # bits of a GB
_GBIT = 1e9


def of(facts: Mapping[str, Any]) -> tuple[Link, str | None]:
    """Return what joins this host to the others, and what of it was assumed."""
    sheet = (facts.get("group") or {}).get("link")
    if sheet:
        return _given(sheet)
    network = facts.get("network") or {}
    ports = [row for row in network.get("rdma") or () if _active(row) and _speed(row)]
    if ports:
        kind: LinkKind = "infiniband" if _layer(ports[0]) == "infiniband" else "roce"
        same = [row for row in ports if _layer(row) == _layer(ports[0])]
        return Link(kind, sum(map(_speed, same)) / _BITS), None
    best = max(map(_speed, _cards(facts, network)), default=0.0)
    if best:
        return Link("ethernet", best / _BITS), (
            f"the hosts are joined by one port of {best / _GBIT:g} Gbit/s Ethernet"
        )
    return _given({"kind": "ethernet", "speed_bits_per_s": None, "count": 1})


def _given(link: Mapping[str, Any]) -> tuple[Link, str | None]:
    kind, speed = link["kind"], link.get("speed_bits_per_s")
    assumed = None
    if not speed:
        speed = PORT_GBIT_S[kind] * _GBIT
        assumed = f"a port of the link between the hosts: {speed / _GBIT:g} Gbit/s {NAMES[kind]}"
    return Link(kind, speed * int(link.get("count") or 1) / _BITS), assumed


def _cards(facts: Mapping[str, Any], network: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    yield from network.get("interfaces") or ()
    yield from (row for row in facts.get("nics") or () if row.get("up") is not False)


def _active(row: Mapping[str, Any]) -> bool:
    return "active" in str(row.get("state") or "").lower()


def _layer(row: Mapping[str, Any]) -> str:
    return str(row.get("link_layer") or "").lower()


def _speed(row: Mapping[str, Any]) -> float:
    return float(row.get("speed_bits_per_s") or 0.0)
