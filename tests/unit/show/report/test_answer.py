"""The answer of a check: what is recommended, in which order the others follow, and why."""

from __future__ import annotations

from typing import Any

import closed_form
import pytest
from check_inputs import eight_h200, facts, speeds, target, two_h100

from kimi_prov.show.report import check
from kimi_prov.show.report.cost import Use
from kimi_prov.sizing.load import Load


def answer(*targets: dict[str, Any], load: Load | None = None) -> dict[str, Any]:
    document = check.build_document(targets, load)
    closed_form.validate(document, "check")
    found: dict[str, Any] = document["answer"]
    return found


def order(found: dict[str, Any]) -> list[str]:
    return [entry["target"] for entry in found["ranking"]]


def test_without_a_load_pace_goes_before_the_cost_of_a_token() -> None:
    slow = target("slow", facts(price={"hourly_usd": 1}), speeds(5, 16, 900, 300))
    batch = target("batch", facts(price={"hourly_usd": 0.1}), speeds(1, 16, 300, 300))
    dear = eight_h200("dear", price={"hourly_usd": 50})
    found = answer(batch, two_h100("blocked"), slow, dear, eight_h200("cheap"))
    assert order(found) == ["cheap", "dear", "slow", "batch", "blocked"]
    assert found["recommended"] == "cheap"
    assert "cheap serves kimi-k2.5" in found["sentence"]
    by_name = {entry["target"]: entry for entry in found["ranking"]}
    assert by_name["blocked"]["pace"] == "blocked"
    assert by_name["blocked"]["serves"] is False
    assert any("speed to chat" in text for text in by_name["slow"]["lacks"])
    assert by_name["dear"]["lacks"] == []


def test_without_a_price_the_usual_rent_counts_and_is_named() -> None:
    found = answer(eight_h200("unpriced", price=None), eight_h200("priced"))
    assert order(found) == ["unpriced", "priced"]
    first = found["ranking"][0]
    assert (first["priced_by"], first["usd_per_hour"]) == ("usual rent", 13.92)
    assert first["lacks"] == ["a price"]
    assert "usual rent" in first["reason"]


def test_with_a_load_the_cost_to_carry_it_ranks() -> None:
    load = Load(users=64)
    few = eight_h200("few", price={"hourly_usd": 30})
    given = {"gpus": ("H200 SXM", 143771, 8), "price": {"hourly_usd": 10}}
    many = target("many", facts(**given), speeds(20, 8, 7000, 300))
    targets = [_for(load, t) for t in (many, few)]
    found = answer(*targets, load=load)
    # 4 machines of 16 for $120, against 8 machines of 8 for $80.
    assert order(found) == ["many", "few"]
    first, second = found["ranking"]
    assert (first["machines"], first["usd_per_hour"]) == (8, 80)
    assert (second["machines"], second["usd_per_hour"]) == (4, 120)
    assert first["usd_total"] == pytest.approx(80 * 8766 * 4, rel=1e-4)
    assert found["sentence"].startswith(
        "For 64 requests at once of kimi-k2.5: 8 machines like many"
    )


def test_what_misses_a_limit_says_which_and_stands_behind_those_that_meet_it() -> None:
    load = Load(users=16, tpot_ms=25)
    given = {"gpus": ("H200 SXM", 143771, 8), "price": {"hourly_usd": 1}}
    slow = target("slow", facts(**given), speeds(20, 8, 7000, 300))
    found = answer(*(_for(load, t) for t in (slow, eight_h200("fast"))), load=load)
    assert order(found) == ["fast", "slow"]
    assert found["ranking"][1]["machines"] is None
    assert "25 ms between tokens (it takes 50.0 ms" in found["ranking"][1]["lacks"][0]
    none = answer(_for(load, slow), load=load)
    assert none["recommended"] is None
    assert "25 ms between tokens" in none["sentence"]


def _for(load: Load, made: dict[str, Any]) -> dict[str, Any]:
    """The target judged for a load."""
    from check_inputs import KNOWN  # noqa: PLC0415

    return check.build_target(made["name"], made["facts"], made["plan"], Use(), KNOWN, load)
