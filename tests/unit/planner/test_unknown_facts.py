"""What a probe could not learn is null: the plan is made all the same, or refused in a sentence."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_inputs import HUGE, gpu_facts, hybrid_facts, lab_facts, metal_facts, plan

from kimi_prov import schemas
from kimi_prov.facts import recording

VALIDATOR = jsonschema.Draft202012Validator(schemas.load("facts"))


def places(node: Any, path: tuple = ()) -> list[tuple]:
    """Every path in a document; of a list's elements the first and the last."""
    rows = [path] if path else []
    if isinstance(node, dict):
        rows += [found for key in node for found in places(node[key], (*path, key))]
    elif isinstance(node, list):
        ends = sorted({0, len(node) - 1}) if node else []
        rows += [found for n in ends for found in places(node[n], (*path, n))]
    return rows


def without(facts: dict[str, Any], path: tuple, *, drop: bool) -> dict[str, Any]:
    """The facts with one place unknown, or not there at all."""
    changed = copy.deepcopy(facts)
    node = changed
    for key in path[:-1]:
        if not isinstance(node, (dict, list)):
            return facts
        node = node[key]
    if drop and isinstance(node, dict):
        node.pop(path[-1], None)
    elif isinstance(node, (dict, list)) and not drop:
        node[path[-1]] = None
    return changed


RECORDED = Path(__file__).resolve().parents[3] / "tests" / "data" / "recordings" / "h200-x8"
# Facts, and the settings for them.
WHOLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lab": (lab_facts(), {}),
    "metal": (metal_facts(), {}),
    "gpu": (gpu_facts(count=1), {}),
    "recorded": (recording.read_recording(RECORDED), HUGE),
    "hybrid": (hybrid_facts(), HUGE),
}


@pytest.mark.parametrize("drop", [False, True], ids=["null", "missing"])
@pytest.mark.parametrize("name", WHOLE)
def test_any_one_unknown_fact_is_borne(name: str, drop: bool) -> None:
    tried = 0
    facts, settings = WHOLE[name]
    for path in places(facts):
        changed = without(facts, path, drop=drop)
        if VALIDATOR.is_valid(changed):
            plan(changed, **settings)
            tried += 1
    assert tried > 30


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(WHOLE)),
    st.lists(st.integers(min_value=0, max_value=10_000), min_size=2, max_size=12),
    st.booleans(),
)
def test_any_number_of_unknown_facts_is_borne(name: str, picks: list[int], drop: bool) -> None:
    facts, settings = WHOLE[name]
    paths = places(facts)
    for pick in picks:
        try:
            changed = without(facts, paths[pick % len(paths)], drop=drop)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier pick took its parent away
        if VALIDATOR.is_valid(changed):
            facts = changed
    plan(facts, **settings)
