"""What a machine does with more requests at once than were planned."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from plan_inputs import LAB_SETTINGS, lab_facts, quoted

from kimi_prov import schemas
from kimi_prov.catalog.loader import load
from kimi_prov.planner.plan import make_plan, with_more_requests
from kimi_prov.planner.settings.parsing import parse


def more(facts: dict[str, Any], **given: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    settings = parse(given, host="one")
    plan = make_plan(facts, settings, load())
    found = with_more_requests(plan, facts, settings, load())
    jsonschema.Draft202012Validator(schemas.load("plan")).validate(found)
    rest = {key: value for key, value in found.items() if key != "throughput"}
    assert rest == {key: value for key, value in plan.items() if key != "throughput"}
    return found, found["throughput"]["more_requests"]


@pytest.mark.parametrize("sheet", ["quote-8x-b200", "quote-xeon-6980p"])
def test_each_is_what_a_plan_of_its_own_says_and_brings_more(sheet: str) -> None:
    facts = quoted(sheet)
    found, rows = more(facts, kimi_model="kimi-k2.5")
    speeds = [found["throughput"], *rows]
    assert len(rows) > 1
    for few, many in zip(speeds, rows, strict=False):
        assert many["concurrency"] == 2 * few["concurrency"]
        assert many["aggregate_tok_s"]["expected"] > few["aggregate_tok_s"]["expected"]
    last = {"kimi_model": "kimi-k2.5", "kimi_concurrency": rows[-1]["concurrency"]}
    alone = make_plan(facts, parse(last, host="one"), load())
    assert {key: alone["throughput"][key] for key in rows[-1]} == rows[-1]
    assert alone["model"]["context"] >= found["model"]["context"]


def test_it_ends_where_more_requests_bring_nothing() -> None:
    facts = quoted("quote-8x-b200")
    _, rows = more(facts, kimi_model="kimi-k2.5")
    given = {"kimi_model": "kimi-k2.5", "kimi_concurrency": rows[-1]["concurrency"]}
    assert more(facts, **given)[1] == []


def test_a_plan_without_an_estimate_has_none() -> None:
    assert more(lab_facts(), **LAB_SETTINGS)[1] == []


@pytest.mark.parametrize(
    ("sheet", "kind"),
    [
        ("quote-8x-b200", "gpu-batched"),
        ("quote-xeon-6980p", "cpu"),
        ("reference-000", "hybrid"),
    ],
)
def test_a_plan_tells_one_request_alone_from_each_of_several(sheet: str, kind: str) -> None:
    speeds = make_plan(quoted(sheet), parse({"kimi_model": "kimi-k2.5"}, host="one"), load())
    found = speeds["throughput"]
    assert found["kind"] == kind
    assert found["concurrency"] > 1
    assert found["single_tok_s"]["expected"] > found["decode_tok_s"]["expected"]
    assert found["single_ttft_s"]["expected"] < found["ttft_s"]["expected"]


def test_a_plan_without_an_estimate_says_so_of_each_figure() -> None:
    settings = parse(LAB_SETTINGS, host="one")
    found = make_plan(lab_facts(), settings, load())["throughput"]
    figures = {"decode_tok_s", "single_tok_s", "ttft_s", "single_ttft_s"}
    assert {name: found[name]["expected"] for name in figures} == dict.fromkeys(figures)
