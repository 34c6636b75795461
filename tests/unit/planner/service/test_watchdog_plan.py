"""How long an engine may make no step, by the speeds that the plan predicts."""

from __future__ import annotations

from typing import Any

import pytest

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.planner.service import watchdog
from kimi_prov.planner.settings.parsing import parse_settings


def plan(
    engine: str,
    variant: str,
    *,
    prefill: float | None,
    decode: float | None,
    context: int = 262_144,
    group: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "engine": {"name": engine, "variant": variant},
        "model": {"context": context},
        "group": group,
        "throughput": {
            "prefill_tok_s": {"low": prefill},
            "decode_tok_s": {"low": decode},
            "basis": "a reason",
        },
    }


def decided(found: dict[str, Any], flags: dict[str, Any], **settings: Any) -> dict[str, Any]:
    wishes = parse_settings({"kimi_model": "kimi-k2.5", **settings}, host="h1")
    return watchdog.make_document(
        wishes,
        load_catalogue(),
        found["engine"],
        flags,
        found["model"]["context"],
        found["throughput"],
        found["group"],
    )


def test_fast_gpus_have_a_minute() -> None:
    found = decided(
        plan("vllm", "cuda", prefill=12_000, decode=34.2), {"max-num-batched-tokens": 8192}
    )
    assert (found["quiet_s"], found["computing_s"], found["ask_s"]) == (60, 60, 60)
    assert found["every_s"] == 10
    assert found["enabled"]


def test_experts_on_processors_have_twice_a_piece_of_a_prompt_and_forty_steps() -> None:
    found = decided(
        plan("ktransformers", "cuda", prefill=95.6, decode=0.482), {"chunked-prefill-size": 4096}
    )
    # 4096 / 95.6 + 40 / 0.482 = 125.8 s
    assert found["quiet_s"] == found["computing_s"] == 252
    assert "4096 tokens" in found["reason"]


def test_a_prompt_that_is_one_step_is_borne_while_the_engine_computes_alone() -> None:
    found = decided(plan("vllm", "cpu", prefill=61.3, decode=0.238), {})
    assert found["quiet_s"] == 60
    # (262144 / 61.3 + 1 / 0.238) x 2
    assert found["computing_s"] == 8562
    assert "while it computes" in found["reason"]


@pytest.mark.parametrize(("variant", "computing"), [("cuda", 120), ("cpu", 1800)])
def test_what_nothing_predicts_has_more_time(variant: str, computing: int) -> None:
    found = decided(plan("vllm", variant, prefill=None, decode=None), {})
    assert (found["quiet_s"], found["computing_s"]) == (120, computing)
    assert "no speed is predicted (a reason)" in found["reason"]


def test_in_a_group_the_head_looks_before_the_supervisor_ends_the_round() -> None:
    rows = plan("vllm", "cuda", prefill=12_000, decode=34.2, group={"rank": 0})
    found = decided(rows, {})
    assert found["only_looks"]
    # The supervisor's own limit is a minute (on_host/group/lifecycle.py).
    assert found["quiet_s"] < 60
    rank = decided({**rows, "group": {"rank": 1}}, {})
    assert not rank["enabled"]
    assert rank["stacks"] is None


def test_it_can_be_left_out() -> None:
    found = decided(plan("vllm", "cuda", prefill=1, decode=1), {}, kimi_watchdog=False)
    assert not found["enabled"]
    assert found["reason"] == "kimi_watchdog is false"
