"""The sums, each against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from check_inputs import KNOWN, eight_h200, facts, speeds, target

from kimi_prov.show.report import cost, cost_text
from kimi_prov.show.report.cost import Rate, Use

PLAN = {"model": {"name": "kimi-k2.5"}, "throughput": speeds(50, 20, 8000, 300)}


def of(price: dict[str, float] | None, use: Use | None = None, plan=PLAN, known=KNOWN):
    return cost.compute_cost({"price": price}, plan, use or Use(), known)


def test_a_rented_machine_costs_its_rent_and_nothing_for_power() -> None:
    found, notes = of({"hourly_usd": 26.0})
    assert found["usd_per_hour"] == 26.0
    assert found["usd_per_hour_parts"] == {"purchase": None, "power": None, "rent": 26.0}
    # 20 / (1/50 + 4/8000) = 975.6 tokens/s; 30 % of an hour: 1,053,659 tokens.
    assert found["output_tok_s_at_full_use"]["expected"] == pytest.approx(975.61, abs=0.01)
    assert found["usd_per_million_output_tokens"]["expected"] == pytest.approx(24.68, abs=0.01)
    assert {"Rent", "Use", "Input"} <= {row["what"] for row in notes}
    assert all(row["source"] for row in notes)


def test_each_request_pays_its_own_prompt_once() -> None:
    """Twenty slots, each with a request after the other, worked out as a day at the machine.

    A prompt of 4,000 tokens takes 0.5 s (8,000 tokens/s), a step that gives each slot a token
    10 ms. In the life of a request each of the other slots begins one too: 20 prompts, 10 s, and
    1,000 steps, 10 s. So 20 answers take 20 s: 1,000 tokens/s. The speed of a request that runs is
    what is left without its own prompt: 1,000 tokens in 19.5 s.
    """
    running = 1000 / 19.5
    plan = {**PLAN, "throughput": speeds(running, 20, 8000, 300)}
    found, _ = of({"hourly_usd": 36.0}, Use(utilisation=1), plan=plan)
    assert found["output_tok_s_at_full_use"]["expected"] == pytest.approx(1000, rel=1e-3)
    assert found["usd_per_million_output_tokens"]["expected"] == pytest.approx(10, rel=1e-3)
    alone = {**PLAN, "throughput": speeds(100, 1, 8000, 300)}
    # 0.5 s and 1,000 steps of 10 ms: 1,000 tokens in 10.5 s.
    once, _ = of({"hourly_usd": 36.0}, plan=alone)
    assert once["output_tok_s_at_full_use"]["expected"] == pytest.approx(1000 / 10.5, rel=1e-3)


def test_without_a_load_the_input_is_that_of_the_estimated_speeds() -> None:
    found, notes = of({"hourly_usd": 26.0})
    assert found["input_tokens_per_output_token"] == 4
    (source,) = [row["source"] for row in notes if row["what"] == "Input"]
    assert source == "the requests of which the speeds are estimated"


def test_a_low_cost_is_that_of_a_high_speed() -> None:
    found = of({"hourly_usd": 26.0})[0]["usd_per_million_output_tokens"]
    assert found["low"] < found["expected"] < found["high"]


def test_a_purchase_is_paid_off_over_its_years_and_draws_power() -> None:
    found, notes = of({"purchase_usd": 350640.0}, Use(amortise_years=4, power_price=0.1))
    assert found["usd_per_hour_parts"]["purchase"] == pytest.approx(10.0)
    # 13.84 kW x (0.3 when idle + 0.7 x 0.3 of use) x $0.10
    assert found["usd_per_hour_parts"]["power"] == pytest.approx(0.7058, abs=1e-3)
    assert found["usd_per_hour"] == pytest.approx(10.706, abs=1e-2)
    given = {row["what"]: row["source"] for row in notes}
    assert given["Amortisation"] == given["Price of power"] == "given by the reader"
    assert given["Use"] == "assumed"


def test_without_a_price_it_says_what_an_hour_may_cost() -> None:
    found, _ = of(None)
    assert found["usd_per_hour"] is None
    assert found["usd_per_million_output_tokens"]["expected"] is None
    assert found["by_use"] == []
    assert any(text.startswith("price:") for text in found["unknown"])
    # 975.61 tokens/s x 3600 s x $5.40 a million x 30 %
    assert found["break_even"][0]["usd_per_hour_at_most"] == pytest.approx(5.69, abs=0.01)


def test_power_that_is_not_known_is_left_out_and_said() -> None:
    found, _ = of({"purchase_usd": 1000.0}, known=replace(KNOWN, power_kw=None))
    assert found["usd_per_hour_excludes"] == ["power"]
    assert any(text.startswith("power:") for text in found["unknown"])


def test_the_plans_own_power_wins() -> None:
    plan = {**PLAN, "power": {"kw": 2.0, "source": "the plan"}}
    assert of({"purchase_usd": 1000.0}, plan=plan)[0]["power_kw"] == 2.0


def test_without_a_speed_nothing_is_claimed() -> None:
    found, _ = of({"hourly_usd": 26.0}, plan={**PLAN, "throughput": speeds(None, 1, None, 1)})
    assert found["usd_per_million_output_tokens"]["expected"] is None
    assert found["break_even"][0]["cheaper"] is None
    assert any(text.startswith("speed:") for text in found["unknown"])


def test_self_hosting_loses_below_the_break_even_and_wins_above() -> None:
    dear = of({"hourly_usd": 26.0})[0]["break_even"][0]
    assert (dear["utilisation"], dear["cheaper"]) == (None, "api")
    assert dear["cost_over_api_at_full_use"] == pytest.approx(26 / 18.966, rel=1e-3)
    cheap, at = of({"hourly_usd": 9.483})[0], 0.5
    row = cheap["break_even"][0]
    assert row["utilisation"] == pytest.approx(at, abs=1e-3)
    assert row["cheaper"] == "api"
    assert row["output_tokens_per_day"] == pytest.approx(42.146e6, rel=1e-3)
    by_use = {row["utilisation"]: row["cheaper"] for row in cheap["by_use"]}
    assert by_use[0.25] == "api"
    assert by_use[0.75] == "self-hosting"
    assert of({"hourly_usd": 9.483}, Use(utilisation=0.6))[0]["break_even"][0]["cheaper"] == (
        "self-hosting"
    )


def test_the_break_even_counts_power_that_grows_with_use() -> None:
    known = replace(KNOWN, power_kw=Rate(20, "test"))
    use = Use(amortise_years=1, power_price=0.2, utilisation=0.5)
    found = of({"purchase_usd": 8766.0 * 3}, use, known=known)[0]
    # fixed 3 + 20 x 0.2 x 0.3 = 4.2, work 2.8; the API's worth of an hour 18.97: 4.2 / 16.17
    share = found["break_even"][0]["utilisation"]
    assert share == pytest.approx(4.2 / 16.166, rel=1e-3)
    again = of({"purchase_usd": 8766.0 * 3}, replace(use, utilisation=share), known=known)[0]
    assert again["usd_per_million_output_tokens"]["expected"] == pytest.approx(5.4, rel=1e-3)


def test_the_models_own_api_comes_first() -> None:
    found = of({"hourly_usd": 26.0})[0]["break_even"]
    assert [row["api"] for row in found] == ["kimi-k2.5", "gemini-3-pro"]


def test_a_target_carries_where_its_figures_are_from() -> None:
    rows = eight_h200()["assumptions"]
    assert {"The machine", "Speed", "Rent"} <= {row["what"] for row in rows}
    made = target("m", facts(kind="recording"))["assumptions"]
    assert "recorded" in made[0]["value"]


def with_more(*more: tuple[int, float]) -> dict[str, object]:
    """The plan for 16 requests at once at 868 tokens/s, and what more requests bring."""
    planned = speeds(868 / 16, 16, 27600, 300)
    rows = [planned, *(speeds(each / many, many, 27600, 300) for many, each in more)]
    curve = [{k: v for k, v in row.items() if k not in ("load_s", "basis")} for row in rows]
    return {**PLAN, "throughput": {**planned, "curve": curve}}


def sentences(plan: dict[str, object], price: dict[str, float]) -> tuple[str, str, str]:
    found, _ = of(price, plan=plan)
    judged = {"plan": plan, "facts": {"price": price}, "cost": found, "findings": []}
    return (
        " ".join(cost_text.describe_costs(judged)),
        cost_text.describe_costs_briefly(judged),
        cost_text.describe_break_even(judged),
    )


def test_the_break_even_is_looked_for_with_as_many_requests_as_the_machine_serves() -> None:
    long, short, cell = sentences(with_more((64, 1400), (256, 1700)), {"hourly_usd": 26.4})
    assert (
        "With 16 requests at once self-hosting loses at any use; with 256 it wins from 80%" in long
    )
    assert "with 256 at once it wins from 80%" in short
    assert cell == "from 80% use with 256 requests at once"


def test_what_loses_with_every_number_of_requests_says_which_were_computed() -> None:
    long, short, cell = sentences(with_more((64, 1400), (256, 1700)), {"hourly_usd": 90})
    assert "loses at any use, with each of 16, 64 and 256 requests at once: with 256" in long
    assert "with each of 16, 64 and 256 requests at once" in short
    assert cell == "never"
    alone = sentences(with_more(), {"hourly_usd": 90})[0]
    assert "loses at any use, with 16 requests at once, and more bring nothing" in alone


def test_what_wins_as_planned_says_that_more_requests_win_earlier() -> None:
    long, _, cell = sentences(with_more((256, 1700)), {"hourly_usd": 9})
    assert "Self-hosting loses below" in long
    assert "With 256 requests at once it wins from 27% use" in long
    assert cell.startswith("from ")
    assert "256" not in cell
