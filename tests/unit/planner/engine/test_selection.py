"""Which engine, version and Python, seen in the plan."""

from __future__ import annotations

from plan_inputs import (
    HUGE,
    blocked_by,
    found,
    gpu_facts,
    hybrid_facts,
    plan,
)

from kimi_prov.planner.plan import refusals


def test_what_is_planned_and_not_provisioned_is_refused_by_apply_alone() -> None:
    document = plan(gpu_facts(), engine_version="0.25.1", **HUGE)
    assert document["engine"]["provisioned"] is False
    assert "engine.not_provisioned" not in blocked_by(document)
    assert "engine.not_provisioned" in {row["id"] for row in refusals(document)}
    assert refusals(plan()) == []


def test_an_unknown_engine_version_and_format_are_blockers() -> None:
    assert "engine.version" in blocked_by(plan(engine_version="9.9.9"))
    assert "weights.format_unpublished" in blocked_by(plan(weights_format="fp8"))
    assert "engine.no_gpu" in blocked_by(plan(engine="ktransformers"))


def test_a_python_that_the_engine_has_no_wheels_for_is_said() -> None:
    facts = hybrid_facts()
    assert not found(plan(facts, **HUGE), "python.engine")
    facts["python"] |= {"path": "/usr/bin/python3", "version": "3.13.5", "others": []}
    assert found(plan(facts, **HUGE), "python.lock")[0]["severity"] == "blocker"
    facts = gpu_facts()
    facts["python"] |= {"path": "/usr/bin/python3", "version": "3.9.2", "others": []}
    assert found(plan(facts, engine_version="0.25.1", **HUGE), "python.engine")


def test_the_engine_is_chosen_with_the_version_and_the_flags_that_it_is_served_with() -> None:
    """Dead flags become today's before memory is counted: the choice and the plan agree."""
    args = {"enable-eplb": True, "num-redundant-experts": 4096}
    document = plan(gpu_facts(), weights_format="nvfp4", engine_args=args, **HUGE)
    assert "gpu.memory" in blocked_by(document)
    assert "do not hold all weights" in document["engine"]["reason"]
