"""Estimate a machine's power on one basis: the design power of its processors and cards.

Published servers say how much more than these parts a whole machine is rated for, and measured ones
how much of that they draw. All factors are rows of the catalogue.

Decides: nameplate, likely draw and ordered power of a machine.
Held by: tests/unit/planner/service/test_power.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.plan.estimates import PowerPlan
    from kimi_prov.facts.host import Host


def make_power_document(host: Host, catalogue: Catalogue) -> PowerPlan | None:
    """Make the plan's `power`; None where the catalogue lacks a part's design power."""
    draws = [card.tdp_w for card in host.cards if card and card.tdp_w]
    if host.processor is None or host.processor.tdp_w is None or len(draws) < len(host.cards):
        return None
    parts = host.processor.tdp_w * host.sockets + sum(draws)
    rated, drawn, ordered, cooling = (
        catalogue.prices.assumed(name)
        for name in ("nameplate", "likely_draw", "power_order", "cooling")
    )
    nameplate = parts * rated / 1000
    return {
        "kw": round(nameplate * drawn * cooling, 2),
        "source": f"design power of processors and cards ({parts:,} W), times {rated:g} for the "
        f"whole machine, times {drawn:g} for the likely draw, times {cooling:g} for cooling",
        "nameplate_kw": round(nameplate, 2),
        "likely_kw": round(nameplate * drawn, 2),
        "order_kw": round(nameplate * ordered, 2),
        "cooling": cooling,
    }
