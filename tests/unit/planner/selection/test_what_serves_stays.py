"""A machine that serves keeps version, layout and cache, unless it is asked to choose anew."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from plan_inputs import HUGE, argument, found, lab_facts, plan, quoted

from kimi_prov.on_host.probe.served import read_served


def served_by(facts: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """The same machine, after this plan was applied to it."""
    there = copy.deepcopy(facts)
    there["kimi"]["served"] = read_served(document)
    return there


def without_findings(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != "findings"}


@pytest.mark.parametrize(
    "sheet", ["reference-001", "reference-003", "quote-8x-b200", "quote-4x-rtx-pro-6000"]
)
def test_the_plan_is_the_same_once_it_serves(sheet: str) -> None:
    fresh = plan(quoted(sheet), **HUGE)
    again = plan(served_by(quoted(sheet), fresh), **HUGE)
    assert without_findings(again) == without_findings(fresh)
    assert not found(again, "serve.kept")


def test_a_lab_machine_stays_too() -> None:
    fresh = plan()
    assert without_findings(plan(served_by(lab_facts(), fresh))) == without_findings(fresh)


def test_a_layout_that_serves_stays_and_the_better_one_is_told() -> None:
    """The plan of an older version, whose layout was the first that fitted."""
    facts, alone = quoted("reference-001"), {"tensor-parallel-size": 8}
    older = plan(facts, engine_args=alone, **HUGE)
    there = served_by(facts, older)
    kept = plan(there, **HUGE)
    for section in ("engine", "model", "instances", "memory"):
        assert kept[section] == older[section], section
    (said,) = found(kept, "serve.kept")
    assert "stays" in said["observed"]
    assert "a cache shared by 8" in said["required"]
    assert "kimi_choose_anew" in said["fix"]
    assert plan(there, choose_anew=True, **HUGE)["parallel"]["decode_context"] == 8
    # What the inventory sets is no choice of the planner's.
    assert plan(there, context=65536, **HUGE)["parallel"]["decode_context"] == 8


def test_more_requests_than_before_are_planned_in_the_layout_that_serves() -> None:
    facts = quoted("quote-8x-b200")
    there = served_by(facts, plan(facts, instances=1, **HUGE))
    more = plan(there, concurrency=64, **HUGE)
    assert len(more["instances"]) == 1
    assert argument(more, "--max-num-seqs") == "64"


def test_an_engine_version_that_serves_stays() -> None:
    facts = quoted("quote-8x-h200")
    there = served_by(facts, plan(facts, engine_version="0.25.1", **HUGE))
    kept = plan(there, **HUGE)
    assert kept["engine"]["version"] == "0.25.1"
    (said,) = found(kept, "serve.kept")
    fresh = plan(facts, **HUGE)["engine"]["version"]
    assert fresh in said["required"]
    assert plan(there, choose_anew=True, **HUGE)["engine"]["version"] == fresh
    # Another model has nothing to keep.
    other = plan(there, model="kimi-k2-thinking", weights_source=None)
    assert not found(other, "serve.kept")


@pytest.mark.parametrize(
    "change",
    [
        {"parallel": None},
        {"parallel": {"tensor": "8", "pipeline": True, "data": -1}},
        {"memory": {"gpu_utilization": 7}},
        {"instances": [{"argv": ["--max-num-seqs"]}]},
        {"instances": [{"argv": [["--max-num-seqs"], 3]}]},
        {"instances": [7]},
        {"instances": "x"},
        {"engine": {"name": "a\n", "version": "1"}},
        {"model": []},
    ],
)
def test_a_plan_of_any_form_is_read(change: dict[str, Any]) -> None:
    facts = quoted("quote-8x-h200")
    document = {**plan(facts, **HUGE), **change}
    assert plan(served_by(facts, document), **HUGE)["instances"]
    assert read_served(None) is None
