"""What a machine does with more and with fewer requests at once than were planned."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import closed_form
import pytest
from plan_inputs import LAB_SETTINGS, lab_facts, quoted

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.planner.plan import make_plan, make_plan_with_curve
from kimi_prov.planner.settings.parsing import parse_settings
from kimi_prov.sizing.demand import size_plan
from kimi_prov.sizing.load import Load


def more(facts: dict[str, Any], **given: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    settings = parse_settings(given, host="one")
    plan = make_plan(facts, settings, load_catalogue())
    found = make_plan_with_curve(facts, settings, load_catalogue())
    closed_form.validate(found, "plan")
    rest = {key: value for key, value in found.items() if key != "throughput"}
    assert rest == {key: value for key, value in plan.items() if key != "throughput"}
    return found, found["throughput"]["more_requests"]


@pytest.mark.parametrize("sheet", ["quote-8x-b200", "quote-xeon-6980p"])
def test_each_is_what_a_plan_of_its_own_says_and_brings_more(sheet: str) -> None:
    facts = quoted(sheet)
    found, rows = more(facts, kimi_model="kimi-k2.5")
    speeds = [found["throughput"], *rows]
    assert len(rows) > 1
    for few, many in pairwise(speeds):
        assert many["concurrency"] > few["concurrency"]
        assert many["aggregate_tok_s"]["expected"] > few["aggregate_tok_s"]["expected"]
    last = {"kimi_model": "kimi-k2.5", "kimi_concurrency": rows[-1]["concurrency"]}
    alone = make_plan(facts, parse_settings(last, host="one"), load_catalogue())
    assert {key: alone["throughput"][key] for key in rows[-1]} == rows[-1]
    assert alone["model"]["context"] >= found["model"]["context"]


@pytest.mark.parametrize("many", [1, 5, 16])
def test_the_curve_goes_from_one_request_alone_to_as_many_as_the_cache_holds(many: int) -> None:
    facts = quoted("quote-8x-h200")
    found, _ = more(facts, kimi_model="kimi-k2.5", kimi_concurrency=many)
    speed, curve = found["throughput"], found["throughput"]["curve"]
    counts = [row["concurrency"] for row in curve]
    assert counts == sorted({1, 2, 4, 8, 16, 32, 64, many, counts[-1]})
    assert 64 < counts[-1] < 128
    assert curve[0]["decode_tok_s"] == speed["single_tok_s"]
    assert curve[0]["ttft_s"]["expected"] == speed["single_ttft_s"]["expected"]
    (planned,) = [row for row in curve if row["concurrency"] == many]
    assert planned == {key: speed[key] for key in planned}
    # Of one request more than the last, one waits.
    over = {"kimi_model": "kimi-k2.5", "kimi_concurrency": 2 * counts[-1]}
    beyond = make_plan(facts, parse_settings(over, host="one"), load_catalogue())["throughput"]
    running = beyond["aggregate_tok_s"]["expected"] / beyond["decode_tok_s"]["expected"]
    assert running < 1.05 * counts[-1]


def test_the_curve_ends_before_the_planned_number_where_the_cache_holds_fewer() -> None:
    found, _ = more(quoted("reference-001"), kimi_model="kimi-k2.5")
    assert [row["concurrency"] for row in found["throughput"]["curve"]] == [1, 2, 4, 8]


SHORT = {"kimi_model": "kimi-k2.5", "kimi_input_tokens": 100, "kimi_output_tokens": 50}


def test_the_curve_ends_with_the_requests_that_the_engine_takes() -> None:
    """The cache of 8x H100 80GB holds twice as many: the others wait all the same."""
    found, rows = more(quoted("reference-004"), **SHORT)
    assert found["throughput"]["curve"][-1]["concurrency"] == 64
    # With them the context that was chosen is shorter, and holds such a request many times.
    asked = {**SHORT, "kimi_concurrency": 256}
    waits = make_plan(quoted("reference-004"), parse_settings(asked, host="one"), load_catalogue())
    argv = waits["instances"][0]["argv"]
    assert argv[argv.index("--max-num-seqs") + 1] == "64"
    most = make_plan(
        quoted("reference-004"),
        parse_settings({**SHORT, "kimi_concurrency": 64}, host="one"),
        load_catalogue(),
    )
    for figure in ("decode_tok_s", "aggregate_tok_s", "ttft_s"):
        assert waits["throughput"][figure] == most["throughput"][figure]
    # Offered are those alone that leave the context as it is.
    for row in rows:
        own = parse_settings({**SHORT, "kimi_concurrency": row["concurrency"]}, host="one")
        plan = make_plan(quoted("reference-004"), own, load_catalogue())
        assert plan["model"]["context"] >= found["model"]["context"]


@pytest.mark.parametrize("sheet", ["quote-8x-h200", "quote-xeon-6980p"])
def test_an_engine_that_is_told_to_take_four_has_the_speed_of_four(sheet: str) -> None:
    def speeds(many: int, **more: Any) -> dict[str, Any]:
        given = {"kimi_model": "kimi-k2.5", "kimi_concurrency": many, **more}
        plan = make_plan(quoted(sheet), parse_settings(given, host="one"), load_catalogue())
        found: dict[str, Any] = plan["throughput"]["aggregate_tok_s"]
        return found

    four = speeds(64, kimi_engine_args={"max-num-seqs": 4})
    assert four["expected"] == pytest.approx(speeds(4)["expected"], rel=0.1)
    assert four["expected"] < speeds(64)["expected"] / 1.5


def test_requests_that_wait_take_nothing_from_those_that_run() -> None:
    def running(many: int) -> float:
        given = {"kimi_model": "kimi-k2.5", "kimi_concurrency": many}
        plan = make_plan(
            quoted("quote-8x-h200"), parse_settings(given, host="one"), load_catalogue()
        )
        assert plan["model"]["context"] == whole
        speed = plan["throughput"]
        return float(speed["aggregate_tok_s"]["expected"] / speed["decode_tok_s"]["expected"])

    whole = load_catalogue().model("kimi-k2.5").context
    few = running(1000)
    assert few > 64
    assert running(10_000) == pytest.approx(few, rel=0.02)
    assert running(100_000) == pytest.approx(few, rel=0.02)


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
    speeds = make_plan(
        quoted(sheet), parse_settings({"kimi_model": "kimi-k2.5"}, host="one"), load_catalogue()
    )
    found = speeds["throughput"]
    assert found["kind"] == kind
    assert found["concurrency"] > 1
    assert found["single_tok_s"]["expected"] > found["decode_tok_s"]["expected"]
    assert found["single_ttft_s"]["expected"] < found["ttft_s"]["expected"]


def test_a_plan_without_an_estimate_says_so_of_each_figure() -> None:
    settings = parse_settings(LAB_SETTINGS, host="one")
    found = make_plan(lab_facts(), settings, load_catalogue())["throughput"]
    figures = {"decode_tok_s", "single_tok_s", "ttft_s", "single_ttft_s"}
    assert {name: found[name]["expected"] for name in figures} == dict.fromkeys(figures)


@pytest.mark.parametrize("sheet", ["reference-001", "quote-8x-h200", "quote-xeon-6980p"])
@pytest.mark.parametrize("tokens", [700, 8192, 9000, 14_000])
@pytest.mark.parametrize("users", [3, 20])
def test_a_part_of_a_request_is_never_counted(sheet: str, tokens: int, users: int) -> None:
    """Two requests do not run at once in a cache of 1.7."""
    given = {"kimi_model": "kimi-k2.5", "kimi_input_tokens": tokens, "kimi_output_tokens": 1024}

    def planned(many: int) -> dict[str, Any]:
        settings = parse_settings({**given, "kimi_concurrency": many}, host="one")
        document: Any = make_plan_with_curve(quoted(sheet), settings, load_catalogue())
        return document

    most = planned(users)["throughput"]["curve"][-1]["concurrency"]
    plan = planned(most)
    speed, copies = plan["throughput"], plan["parallel"]["data"]
    length = speed["input_tokens"] + speed["output_tokens"]
    held = copies * (plan["memory"]["kv_tokens_max"] // copies // length)
    assert most <= max(1, held) * len(plan["instances"])
    sizing = size_plan(planned(users), Load(users=users, input_tokens=tokens), serves=True)
    machines, each = sizing["machines"]["expected"], sizing["most_requests"]
    assert each == most
    assert (machines or 0) * each >= users > ((machines or 0) - 1) * each
