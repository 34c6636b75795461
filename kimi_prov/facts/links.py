"""Describe the network between the hosts of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts.quote import LinkFacts

NAMES = {"infiniband": "InfiniBand", "roce": "RoCE", "ethernet": "Ethernet"}
_GBIT = 1e9


def format_link(link: LinkFacts) -> str:
    """Write the link of facts' `group`: "8 x 400 Gbit/s InfiniBand"."""
    speed, ports = link.get("speed_bits_per_s"), int(link.get("count") or 1)
    name = NAMES.get(link["kind"], str(link["kind"]))
    rate = f"{speed / _GBIT:g} Gbit/s {name}" if speed else name
    return f"{ports} x {rate}" if ports > 1 else rate
