"""How the model lies over GPUs: ranks, stages, copies, instances, shared caches."""

from __future__ import annotations

import re

import pytest
from plan_inputs import (
    HUGE,
    argument,
    blocked_by,
    found,
    gpu_facts,
    plan,
)

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.planner.memory import stages

SPREAD = {"tensor-parallel-size": 1, "data-parallel-size": 8, "enable-expert-parallel": True}


def test_context_parallelism_holds_a_context_that_one_rank_does_not() -> None:
    document = plan(gpu_facts(8, 81559), context=65536, **HUGE)
    assert blocked_by(document) == set()
    assert document["parallel"]["decode_context"] == 8
    assert argument(document, "--decode-context-parallel-size") == "8"
    assert document["model"]["kv_dtype"] == "bf16"
    assert found(document, "parallel.context")
    one_rank = {"tensor-parallel-size": 8}
    short = plan(gpu_facts(8, 81559), engine_args=one_rank, context=65536, **HUGE)
    assert "context.memory" in blocked_by(short)


def test_stages_of_layers_use_six_cards() -> None:
    """Four H200 hold no Kimi in INT4 (148 GB each), six do: two ranks in three stages."""
    document = plan(gpu_facts(6), **HUGE)
    assert blocked_by(document) == set()
    assert document["engine"]["name"] == "vllm"
    assert (document["parallel"]["tensor"], document["parallel"]["pipeline"]) == (2, 3)
    assert argument(document, "--pipeline-parallel-size") == "3"
    assert document["instances"][0]["gpus"] == list(range(6))
    assert found(document, "parallel.pipeline")
    # The middle one of three runs has 21 layers, all of experts, of 60 among 61.
    share = (
        document["memory"]["weights_bytes_per_gpu"]
        / plan(gpu_facts(6), engine="vllm", engine_args={"tensor-parallel-size": 2}, **HUGE)[
            "memory"
        ]["weights_bytes_per_gpu"]
    )
    assert 21 / 61 < share < 21 / 60


def test_sixteen_cards_are_two_instances() -> None:
    document = plan(gpu_facts(16), concurrency=100, **HUGE)
    assert blocked_by(document) == set()
    one, two = document["instances"]
    assert (one["gpus"], two["gpus"]) == (list(range(8)), list(range(8, 16)))
    assert two["env"]["CUDA_VISIBLE_DEVICES"] == "8,9,10,11,12,13,14,15"
    assert (one["port"], two["port"]) == (8001, 8002)
    assert [row["port"] for row in document["proxy"]["backends"]] == [8001, 8002]
    assert argument(document, "--max-num-seqs") == "50"
    assert found(document, "parallel.instances")
    half = plan(gpu_facts(8), concurrency=50, **HUGE)["throughput"]["aggregate_tok_s"]
    both = document["throughput"]["aggregate_tok_s"]
    assert both["expected"] == pytest.approx(2 * half["expected"], rel=0.01)


def test_sixteen_smaller_cards_hold_the_model_together() -> None:
    document = plan(gpu_facts(16, 40960), **HUGE)
    assert document["parallel"]["tensor"] == 16
    assert len(document["instances"]) == 1


def test_data_parallel_attention_is_offered_and_counted() -> None:
    crowd = plan(gpu_facts(), concurrency=256, **HUGE)
    said = found(crowd, "parallel.data")[0]["required"]
    assert "data-parallel-size: 8" in said
    spread = plan(gpu_facts(), concurrency=256, engine_args=SPREAD, **HUGE)
    assert blocked_by(spread) == set()
    assert str(spread["memory"]["kv_tokens_max"]) in said
    assert spread["memory"]["kv_tokens_max"] > 3 * crowd["memory"]["kv_tokens_max"]
    assert spread["instances"][0]["gpus"] == list(range(8))
    # Each of the eight engines takes twice its share: their balancer is not even, and some
    # waited for a whole answer while others had room (4x H200, 64 requests, 16 an engine).
    assert argument(spread, "--max-num-seqs") == "64"
    slower = spread["throughput"]["single_tok_s"]["expected"]
    assert slower < crowd["throughput"]["single_tok_s"]["expected"]
    assert not found(plan(gpu_facts(), concurrency=4, **HUGE), "parallel.data")


@pytest.mark.parametrize(
    "own",
    [{"max-num-batched-tokens": 2048}, {"gpu-memory-utilization": 0.9}, {"max-num-seqs": 128}],
    ids=["shorter passes", "less of each GPU", "requests"],
)
def test_the_offer_of_data_parallel_attention_keeps_the_other_flags(own: dict[str, float]) -> None:
    crowd = plan(gpu_facts(), concurrency=256, engine_args=own, **HUGE)
    spread = plan(gpu_facts(), concurrency=256, engine_args={**own, **SPREAD}, **HUGE)
    (said,) = found(crowd, "parallel.data")
    assert said["required"].startswith(f"{spread['memory']['kv_tokens_max']} tokens with")


def test_an_engine_takes_no_more_requests_than_tokens_of_a_pass() -> None:
    """vLLM's configuration refuses that."""
    args = {**SPREAD, "max-num-batched-tokens": 200}
    document = plan(gpu_facts(), concurrency=1024, engine_args=args, **HUGE)
    assert argument(document, "--max-num-seqs") == "200"


def overhead(model: str, concurrency: int = 256, **args: object) -> int:
    """Bytes of a GPU beside weights and cache, of 16 with 288 GB and data-parallel attention."""
    spread = {"data-parallel-size": 16, "enable-expert-parallel": True, **args}
    facts = gpu_facts(16, 288_000)
    settings = {"model": model, "engine": "vllm", "engine_args": spread, "context": 32768}
    document = plan(facts, concurrency=concurrency, weights_source="file:///m", **settings)
    return int(document["memory"]["overhead_bytes_per_gpu"])


def test_what_a_request_keeps_is_counted_for_as_many_as_there_are() -> None:
    """K3's states are 449 MB a request: an engine that takes more of them leaves less to others."""
    even = overhead("kimi-k3", **{"max-num-seqs": 16})
    shape = load_catalogue().model("kimi-k3").architecture
    assert overhead("kimi-k3") - even == 16 * 32 * shape.vocab


def test_a_pass_of_all_engines_is_as_wide_as_the_experts_that_a_card_has() -> None:
    """Without expert parallelism a card has a slice of each; Kimi K2 is wider than either."""
    for model, differs in (("kimi-k2-thinking", False), ("kimi-k3", True)):
        whole = overhead(model)
        slices = overhead(model, **{"enable-expert-parallel": False})
        assert (whole > slices) == differs


def test_more_copies_than_cards_are_refused() -> None:
    args = {"tensor-parallel-size": 8, "data-parallel-size": 2}
    document = plan(gpu_facts(), engine_args=args, **HUGE)
    assert "gpu.divisible" in blocked_by(document)
    assert "data-parallel-size 2" in found(document, "gpu.divisible")[0]["observed"]


def test_context_parallelism_divides_the_cache() -> None:
    alone = plan(gpu_facts(), **HUGE)
    spread = plan(gpu_facts(), engine_args={"decode-context-parallel-size": 8}, **HUGE)
    ratio = spread["memory"]["kv_tokens_max"] / alone["memory"]["kv_tokens_max"]
    assert ratio == pytest.approx(8, rel=1e-5)


def test_pipeline_stages_share_weights_and_cache() -> None:
    args = {"tensor-parallel-size": 4, "pipeline-parallel-size": 2}
    flat, staged = plan(gpu_facts(), **HUGE), plan(gpu_facts(), engine_args=args, **HUGE)
    assert blocked_by(staged) == blocked_by(flat)
    assert staged["parallel"]["pipeline"] == 2
    assert staged["instances"][0]["gpus"] == list(range(8))
    assert staged["memory"]["weights_bytes_per_gpu"] == pytest.approx(
        flat["memory"]["weights_bytes_per_gpu"], rel=0.03
    )


@pytest.mark.parametrize(
    "args",
    [
        {"tensor-parallel-size": 8},
        {"tensor-parallel-size": 4, "pipeline-parallel-size": 2},
        {"tensor-parallel-size": 4, "data-parallel-size": 2},
    ],
    ids=["tensor", "stages", "copies"],
)
def test_an_8_bit_cache_is_told_as_it_would_be_planned(args: dict[str, int]) -> None:
    wide = plan(gpu_facts(), engine_args=args, kv_dtype="bf16", **HUGE)
    narrow = plan(gpu_facts(), engine_args=args, kv_dtype="fp8", **HUGE)
    (said,) = found(wide, "kv.replication")
    told = re.search(r"with an 8-bit cache (\d+) tokens", said["required"])
    assert told
    assert int(told[1]) == pytest.approx(narrow["memory"]["kv_tokens_max"], rel=1e-5)


@pytest.mark.parametrize(("mib", "fits"), [(143771, True), (81559, False)])
def test_of_stages_the_one_that_lacks_most_is_told(mib: int, fits: bool) -> None:
    args = {"tensor-parallel-size": 4, "pipeline-parallel-size": 2}
    wishes = {"model": "kimi-k2-instruct", "weights_source": None, "engine": "vllm"}
    document = plan(gpu_facts(8, mib), engine_args=args, **wishes)
    memory = document["memory"]
    assert (memory["kv_available_bytes_per_gpu"] > 0) == fits
    shape = load_catalogue().model("kimi-k2-instruct").architecture
    sizes = [
        stages.count_plain_bytes(shape, "fp8", 4, stage)
        + stages.count_experts_bytes(shape, "fp8", stage, shape.experts) // 4
        for stage in stages.cut_stages(shape, 2)
    ]
    assert memory["weights_bytes_per_gpu"] == max(sizes)


def test_copies_of_experts_are_those_of_a_stage_s_layers() -> None:
    args = {
        "tensor-parallel-size": 4,
        "enable-expert-parallel": True,
        "enable-eplb": True,
        "eplb-config": {"num_redundant_experts": 32},
    }
    wishes = {"model": "kimi-k2-instruct", "weights_source": None, "engine": "vllm"}

    def weights(**more: object) -> int:
        document = plan(gpu_facts(), engine_args=args | more, **wishes)
        return int(document["memory"]["weights_bytes_per_gpu"])

    plain = {"enable-eplb": False}
    whole = weights() - weights(**plain)
    staged = weights(**{"pipeline-parallel-size": 2})
    staged -= weights(**{"pipeline-parallel-size": 2}, **plain)
    assert whole > 0
    assert staged == pytest.approx(whole / 2, rel=0.02)
