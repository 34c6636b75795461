"""The catalogue's prices as the costs need them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.report.cost import Prices

if TYPE_CHECKING:
    from kimi_prov.catalog.loader import Catalogue


def prices(catalogue: Catalogue) -> Prices:
    """Read what the catalogue knows about money and power."""
    return Prices()
