"""What mending a finding costs: work, cards counted by the plan's own sums, a site's own prices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from plan_inputs import HUGE, blocked_by, found, gpu_facts, hybrid_facts, metal_facts, plan

from kimi_prov.catalog.loader import OVERLAY, load_catalogue

if TYPE_CHECKING:
    from pathlib import Path

PRICES = """
assumptions:
  - {name: memory_gib, value: 10, unit: USD per GiB, source: our dealer, confidence: high}
  - {name: disk_tb, value: 100, unit: USD per TB, source: our dealer, confidence: high}
"""


def h100(count: int) -> dict[str, Any]:
    facts = gpu_facts(count, 81559)
    for card in facts["gpus"]:
        card["model"] = "NVIDIA H100 80GB HBM3"
    return facts


def test_settings_cost_work() -> None:
    facts = gpu_facts(driver="570.133.20")
    row = found(plan(facts, **HUGE), "driver.branch")[0]
    assert (row["cost_usd"], row["cost_basis"]) == (0, "work, nothing to buy")


def test_cards_that_are_missing_are_counted_and_priced() -> None:
    """Four H100 hold no Kimi in INT4, eight do: four more at the prices of the catalogue."""
    document = plan(h100(4), engine="vllm", **HUGE)
    assert "gpu.memory" in blocked_by(document)
    row = found(document, "gpu.memory")[0]
    card = next(r for r in load_catalogue().prices.purchase if r.name == "H100 SXM 80GB")
    assert row["cost_usd"] == 4 * (card.low_usd + card.high_usd) / 2
    span = f"${card.low_usd:,.0f} to ${card.high_usd:,.0f}"
    assert f"4 more H100 SXM 80GB at {span}" in row["cost_basis"]


def test_a_machine_without_cards_is_told_the_least_that_cards_for_it_cost() -> None:
    facts = metal_facts(gib=2048)
    facts["cpu"]["isa"] = ["sse4_2"]  # nothing that 4-bit experts could be computed with
    row = found(plan(facts, **HUGE), "engine.format")[0]
    # Four B200 hold it (151 GB each) and cost 220,000, eight H100 240,000.
    assert row["cost_usd"] == 8 * 8600
    assert "8 RTX PRO 6000 Blackwell" in row["cost_basis"]


def test_what_nobody_prices_stays_unknown() -> None:
    row = found(plan(hybrid_facts(gib=512), **HUGE), "memory.host")[0]
    assert row["severity"] == "blocker"
    assert "cost_usd" not in row


def test_a_site_that_names_its_prices_has_memory_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prices.yaml").write_text(PRICES)
    monkeypatch.setenv(OVERLAY, str(tmp_path))
    document = plan(hybrid_facts(gib=512), **HUGE)
    memory, row = document["memory"], found(document, "memory.host")[0]
    missing = memory["host_ram_required_bytes"] - memory["host_ram_available_bytes"]
    assert row["cost_usd"] == pytest.approx(10 * missing / (1 << 30), abs=0.01)
    assert "our dealer" in row["cost_basis"]
    facts = hybrid_facts()
    facts["memory"] |= {"channels_populated": 20, "channels_total": 24}
    row = found(plan(facts, **HUGE), "memory.channels")[0]
    share = facts["memory"]["total_bytes"] / 20 / (1 << 30)
    assert row["cost_usd"] == pytest.approx(10 * 4 * share, rel=0.01)


def test_what_is_well_or_only_told_costs_nothing_to_say() -> None:
    document = plan(gpu_facts(), **HUGE)
    quiet = [row for row in document["findings"] if row["severity"] in ("pass", "info")]
    assert quiet
    assert not any("cost_usd" in row for row in quiet)
