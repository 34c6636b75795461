"""Engines on processors and hybrids are the best of all that the machine holds."""

from __future__ import annotations

from typing import Any

import pytest
from plan_inputs import HUGE, argument, found, hybrid_facts, metal_facts, plan


def four_nodes() -> dict[str, Any]:
    return metal_facts(nodes=4, gib=3072, cores=96)


def rate(document: dict[str, Any]) -> float:
    speed = document["throughput"]
    one, everyone = (speed[name]["expected"] for name in ("single_tok_s", "aggregate_tok_s"))
    return float((one * everyone) ** 0.5)


@pytest.mark.parametrize(("requests", "engines"), [(1, 1), (3, 3), (16, 4)])
def test_as_many_engines_as_nodes_hold_and_requests_keep_busy(requests: int, engines: int) -> None:
    document = plan(four_nodes(), **HUGE, concurrency=requests)
    assert len(document["instances"]) == engines
    reason = document["parallel"]["reason"]
    assert f"{engines} engines" in reason or engines == 1
    assert "next is " in reason
    assert "tokens/s alone" in reason


@pytest.mark.parametrize(
    "fixed", [{"instances": 1}, {"instances": 2}, {"experts": "kt"}, {"experts": "native"}]
)
@pytest.mark.parametrize("requests", [1, 5, 64])
def test_no_value_that_is_set_is_better_than_auto(requests: int, fixed: dict[str, Any]) -> None:
    asked = {**HUGE, "concurrency": requests}
    assert rate(plan(four_nodes(), **asked, **fixed)) <= 1.011 * rate(plan(four_nodes(), **asked))


def test_a_hybrid_takes_the_gpus_that_gain_and_names_what_fewer_lose() -> None:
    document = plan(hybrid_facts(), **HUGE)
    reason = document["parallel"]["reason"]
    assert reason.startswith("2 GPUs with ")
    assert "; next is 1 GPU with " in reason
    by_hand = plan(hybrid_facts(), **HUGE, engine_args={"tensor-parallel-size": 1})
    assert argument(by_hand, "--tensor-parallel-size") == "1"
    assert rate(by_hand) < rate(document)


def serve(facts: dict[str, Any], **chosen: Any) -> dict[str, Any]:
    """Return the facts of a machine that serves by what was chosen."""
    served = {"model": "kimi-k2.5", "engine": "vllm", "version": "0.32.0", "kv_dtype": "bf16"}
    served |= {"tensor": 1, "pipeline": 1, "data": 1, "decode_context": 1, "instances": 1}
    served |= {"concurrency": 16, "requests": 8, "gpu_share": None}
    facts["kimi"]["served"] = served | chosen
    return facts


def test_the_engines_of_a_machine_that_serves_stay_and_the_plan_says_what_more_would_bring() -> (
    None
):
    facts = serve(four_nodes(), instances=2)
    document = plan(facts, **HUGE)
    assert len(document["instances"]) == 2
    (kept,) = found(document, "serve.kept")
    assert "2 engines" in kept["observed"]
    assert "4 engines" in kept["required"]
    assert len(plan(facts, **HUGE, choose_anew=True)["instances"]) == 4


def test_an_engine_of_one_node_stays_there_although_all_nodes_are_faster() -> None:
    asked = {**HUGE, "dense_weights": "int8", "concurrency": 1}
    facts = serve(metal_facts(nodes=2, gib=2048, cores=96), experts="native", nodes=1)
    document = plan(facts, **asked)
    assert document["experts"]["nodes"] == [0]
    assert found(document, "serve.kept")
    assert plan(facts, **asked, choose_anew=True)["experts"]["nodes"] == [0, 1]
    # Facts of a version that cut no weights do not tell.
    del facts["kimi"]["served"]["nodes"]
    assert plan(facts, **asked)["experts"]["nodes"] == [0]


def test_engines_with_a_small_cache_stay() -> None:
    facts = serve(metal_facts(nodes=2, gib=1240, cores=96), instances=2, experts="native", nodes=1)
    asked = {**HUGE, "concurrency": 4}
    document = plan(facts, **asked)
    assert (len(document["instances"]), document["experts"]["by"]) == (2, "native")
    assert found(document, "serve.kept")
    assert len(plan(facts, **asked, choose_anew=True)["instances"]) == 1


def test_a_machine_that_serves_by_vllm_s_own_experts_goes_on() -> None:
    facts = serve(metal_facts(nodes=2, gib=1240, cores=96), experts="vllm", nodes=2)
    document = plan(facts, **HUGE)
    assert document["experts"]["by"] == "vllm"
    assert found(document, "serve.kept")
    assert plan(facts, **HUGE, choose_anew=True)["experts"]["by"] != "vllm"
