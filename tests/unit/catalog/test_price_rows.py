"""Rents and prices of parts: ordered, dated, and found by the names that machines have."""

from __future__ import annotations

import re

from kimi_prov.catalog import loader

YEAR = re.compile(r"\b20\d\d\b")


def test_a_rent_is_held_against_three_dated_sources_at_least():
    catalogue = loader.load_catalogue()
    assert catalogue.prices.rent
    for row in catalogue.prices.rent:
        assert row.low_usd <= row.usual_usd <= row.high_usd
        dated = [source for source in row.source.split("; ") if YEAR.search(source)]
        assert len(dated) >= 3, row.name
        assert catalogue.gpu(row.name).name == row.name
        assert catalogue.prices.find_rent(row.name) == row


def test_a_part_has_a_dated_range_or_no_price():
    catalogue = loader.load_catalogue()
    for row in catalogue.prices.parts:
        assert row.low_usd <= row.high_usd
        assert YEAR.search(row.source)
        if row.unit == "piece":
            assert catalogue.cpu(row.name).name == row.name
        assert catalogue.prices.find_part(row.name) == row
    assert catalogue.prices.find_part("EPYC 9965") is None
    assert catalogue.prices.find_rent("RTX 4090") is None
