"""Memory, thread pools and NUMA nodes of KTransformers, seen in the plan."""

from __future__ import annotations

import pytest
from plan_inputs import (
    HUGE,
    argument,
    blocked_by,
    found,
    hybrid_facts,
    plan,
    snc,
)


def test_a_hybrid_is_laid_over_its_nodes() -> None:
    document = plan(hybrid_facts(), **HUGE)
    instance = document["instances"][0]
    assert argument(document, "--kt-method") == "RAWINT4"
    assert argument(document, "--kt-threadpool-count") == "2"
    place = instance["argv"].index("--kt-numa-nodes")
    assert instance["argv"][place + 1 : place + 3] == ["0", "1"]
    # Two cores a pool stay free, and threads are cores.
    assert argument(document, "--kt-cpuinfer") == "92"
    assert instance["numactl"] == []
    assert instance["gpus"] == [0, 1]


def test_memory_of_a_hybrid() -> None:
    """634 GB of experts; each GPU: 24.34 GB / 2, cache, 1.486 GB / 2 an expert, 2.75 GB."""
    document = plan(hybrid_facts(), context=32768, concurrency=1, **HUGE)
    memory = document["memory"]
    experts = next(p["bytes"] for p in memory["host_parts"] if p["kind"] == "weights")
    assert experts / 1e9 == pytest.approx(634.2, rel=0.001)
    used = memory["weights_bytes_per_gpu"] + memory["kv_available_bytes_per_gpu"]
    used += memory["overhead_bytes_per_gpu"]
    assert used <= memory["gpu_bytes"] * 0.98
    assert used > memory["gpu_bytes"] * 0.95
    assert memory["kv_tokens_max"] == 32768
    assert memory["gpu_experts"] > 66
    fewer = plan(hybrid_facts(), context=32768, engine_args={"kt-num-gpu-experts": 10}, **HUGE)
    assert fewer["memory"]["gpu_experts"] == 10


def test_a_hybrid_computes_long_prompts_in_the_largest_chunks_that_leave_room_for_experts() -> None:
    """Every chunk streams all layers: a chunk of 16,384 tokens costs hardly more than of 4,096."""
    fp8 = HUGE | {"model": "kimi-k2-instruct"}
    wide = plan(hybrid_facts(), **fp8)
    assert argument(wide, "--chunked-prefill-size") == "16384"
    narrow = plan(hybrid_facts(), engine_args={"chunked-prefill-size": 4096}, **fp8)
    assert argument(narrow, "--chunked-prefill-size") == "4096"
    speed, slow = (p["throughput"]["prefill_tok_s"]["expected"] for p in (wide, narrow))
    assert speed > 1.5 * slow
    used, less = (p["memory"]["overhead_bytes_per_gpu"] for p in (wide, narrow))
    assert used - less == 12288 * 14 * 7168 * 2
    small = hybrid_facts()
    for card in small["gpus"]:
        card |= {"model": "NVIDIA GeForce RTX 4090", "memory_total_bytes": 24564 << 20}
    assert argument(plan(small, **HUGE), "--chunked-prefill-size") == "4096"


def test_a_hybrid_with_too_little_memory_is_refused() -> None:
    document = plan(hybrid_facts(gib=512), **HUGE)
    assert "memory.host" in blocked_by(document)


def test_kimi_k26_stays_on_one_gpu_in_a_hybrid() -> None:
    document = plan(hybrid_facts(4), **(HUGE | {"model": "kimi-k2.6"}))
    assert document["engine"]["name"] == "ktransformers"
    assert document["parallel"]["tensor"] == 1
    assert found(document, "gpu.idle")


def test_nodes_are_taken_from_both_sockets() -> None:
    assert plan(snc(4), **HUGE)["hybrid"]["nodes"] == [0, 1, 2, 3]
    assert plan(snc(6), **HUGE)["hybrid"]["nodes"] == [0, 1, 3, 4]
