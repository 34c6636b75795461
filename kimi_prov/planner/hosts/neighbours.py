"""Weights from neighbour to neighbour: the host that each fetches from, or the source."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.planner.findings import make_finding, sort_by_severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.service import NeighboursFirewall
    from kimi_prov.contract.documents.plan.weights import NeighbourAddress

# A host gives to at most two others, so that no host carries the load of all. Where a host fails,
# only these two fetch from the source instead.
_MAX_TAKERS = 2
_V4 = 4


@dataclass(frozen=True)
class Neighbour:
    """A host that fetches the same weights: its name, and where its neighbours reach it."""

    host: str
    address: str


def add_neighbours(
    plan: MachinePlan, own: str, weights_from: str, port: int, rows: Sequence[Neighbour]
) -> None:
    """Add `neighbours` to a host's plan where it gives or takes, and open its port for the takers.

    `rows`: all hosts that fetch the same weights, this one too, in the inventory's order;
    `weights_from`: this host's `kimi_weights_from`; `port`: the port on which a host gives.
    """
    source = str(plan["weights"]["source"])
    reached = [row for row in rows if _is_address(row.address)]
    position = next((n for n, row in enumerate(reached) if row.host == own), None)
    reason = _find_reason_for_none(source, rows, position)
    if reason is None and weights_from != "source" and position is not None:
        giver = reached[(position - 1) // _MAX_TAKERS] if position else None
        takers = reached[position * _MAX_TAKERS + 1 : position * _MAX_TAKERS + 1 + _MAX_TAKERS]
        plan["neighbours"] = {
            "takes_from": _make_row(giver) if giver else None,
            "gives_to": [_make_row(row) for row in takers],
            "port": port,
        }
        if takers:
            plan["firewall"]["neighbours"] = _make_firewall_section(takers, port)
    elif weights_from == "neighbours":
        finding = make_finding(
            "weights.no_neighbour",
            observed=reason,
            required="several hosts with the same source on the network, each with an IP address "
            "in ansible_host or kimi_group_address",
            fix="leave kimi_weights_from at auto, or name addresses",
        )
        plan["findings"] = sort_by_severity([*plan["findings"], finding])


def _find_reason_for_none(
    source: str, rows: Sequence[Neighbour], position: int | None
) -> str | None:
    """Say why a host has no neighbour for its weights; None where it has one."""
    if not source or source.startswith("file://"):
        return f"kimi_weights_source is {source or 'not set'}: each host has the files itself"
    if len(rows) == 1:
        return "no other host of the inventory fetches the same weights"
    if position is None:
        return "its neighbours know no IP address of it"
    return None


def _make_row(row: Neighbour) -> NeighbourAddress:
    return {"host": row.host, "address": row.address}


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _make_firewall_section(takers: Sequence[Neighbour], port: int) -> NeighboursFirewall:
    addresses = [ipaddress.ip_address(row.address) for row in takers]
    return {
        "ipv4": [str(address) for address in addresses if address.version == _V4],
        "ipv6": [str(address) for address in addresses if address.version != _V4],
        "port": port,
    }
