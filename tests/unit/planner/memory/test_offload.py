"""Cache in host memory: of what is idle, counted in every limit, and only where it earns that."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_inputs import HUGE, argument, blocked_by, found, gpu_facts, hybrid_facts, plan

from kimi_prov.errors import UserError

GIB = 1 << 30
AGENTS = HUGE | {"workload": "agents", "engine_version": "0.32.0"}
FLAG = "--kv-offloading-size"


def memory_of(gib: int, **host: Any) -> dict[str, Any]:
    """Facts of eight H200 with so much memory."""
    facts = gpu_facts(**host)
    facts["memory"] |= {"total_bytes": gib * GIB, "shm_size_bytes": gib * GIB // 2}
    nodes = facts["numa"]["nodes"]
    for node in nodes:
        node["memory_total_bytes"] = gib * GIB // len(nodes)
    return facts


def offloaded(document: dict[str, Any]) -> int:
    return sum(p["bytes"] for p in document["memory"]["host_parts"] if p["kind"] == "cache")


def test_agents_get_the_idle_memory_beside_the_ram_disk() -> None:
    plain, document = (
        plan(gpu_facts(), **(AGENTS | {"workload": "chat"})),
        plan(gpu_facts(), **AGENTS),
    )
    assert offloaded(plain) == 0
    assert FLAG not in plain["instances"][0]["argv"]
    assert document["ram_disk"] == plain["ram_disk"]
    size = offloaded(document)
    assert size == int(argument(document, FLAG)) * GIB
    before, after = plain["memory"], document["memory"]
    assert after["host_ram_required_bytes"] - before["host_ram_required_bytes"] == size
    assert after["kv_tokens_max"] == before["kv_tokens_max"]
    assert after["unit_limit_bytes"] > size
    [finding] = found(document, "engine.cache_offload")
    assert finding["severity"] == "info"
    assert "90% of them repeated" in finding["required"]


def test_the_stated_reuse_decides_and_counts_in_the_estimate() -> None:
    chat = HUGE | {"workload": "chat", "engine_version": "0.32.0"}
    assert offloaded(plan(gpu_facts(), prefix_reuse=0.3, **chat)) == 0
    document = plan(gpu_facts(), prefix_reuse=0.8, **chat)
    assert offloaded(document) > 0
    assert "80% of them repeated" in found(document, "engine.cache_offload")[0]["required"]


def test_a_cache_no_larger_than_that_of_the_gpus_is_not_planned() -> None:
    """Before 0.32.0 every rank keeps a copy of its own."""
    document = plan(gpu_facts(), **(AGENTS | {"engine_version": "0.19.1"}))
    assert offloaded(document) == 0
    [finding] = found(document, "engine.cache_offload")
    assert "no more of the cache" in finding["title"]


def test_off_and_a_size_are_taken_as_they_are() -> None:
    for off in ("off", False):
        document = plan(gpu_facts(), cache_offload=off, **AGENTS)
        assert offloaded(document) == 0
        assert not found(document, "engine.cache_offload")
    assert argument(plan(gpu_facts(), cache_offload=64, **AGENTS), FLAG) == "64"
    with pytest.raises(UserError, match="GiB"):
        plan(gpu_facts(), cache_offload="much", **AGENTS)


@pytest.mark.parametrize(
    ("facts", "more"),
    [
        (gpu_facts(), {"cache_offload": 100_000}),
        (hybrid_facts(), {"cache_offload": 16, "engine_version": "auto"}),
        (
            gpu_facts(),
            {"cache_offload": 16, "speculative": "kimi-k2.5-dflash"},
        ),
    ],
)
def test_a_size_that_cannot_be_is_a_blocker(facts: dict[str, Any], more: dict[str, Any]) -> None:
    document = plan(facts, **(AGENTS | more))
    assert "engine.cache_offload" in blocked_by(document)
    assert offloaded(document) == 0


def test_a_size_in_two_places_is_a_finding_and_the_flag_counts() -> None:
    args = {"kv-offloading-size": 8}
    document = plan(gpu_facts(), cache_offload=64, engine_args=args, **AGENTS)
    assert argument(document, FLAG) == "8"
    assert offloaded(document) == 8 * GIB
    assert found(document, "engine.cache_offload")[0]["severity"] == "warning"
    assert not found(plan(gpu_facts(), engine_args=args, **AGENTS), "engine.cache_offload")


def test_each_engine_of_data_parallelism_takes_what_the_flag_says() -> None:
    args = {"kv-offloading-size": 8, "data-parallel-size": 2, "tensor-parallel-size": 4}
    assert offloaded(plan(gpu_facts(), engine_args=args, **AGENTS)) == 16 * GIB


@settings(max_examples=25, deadline=None)
@given(
    gib=st.integers(64, 4096),
    version=st.sampled_from(["0.19.1", "0.25.1", "0.32.0"]),
    size=st.sampled_from(["auto", 1, 32, 256, 1024]),
    tmpfs=st.sampled_from(["auto", "never"]),
    requests=st.sampled_from([1, 16, 128]),
)
def test_a_plan_with_offloaded_cache_never_exceeds_the_memory(
    gib: int, version: str, size: str | int, tmpfs: str, requests: int
) -> None:
    document = plan(
        memory_of(gib),
        cache_offload=size,
        ram_disk=tmpfs,
        concurrency=requests,
        **(AGENTS | {"engine_version": version}),
    )
    memory = document["memory"]
    if offloaded(document):
        assert memory["host_ram_required_bytes"] <= memory["host_ram_available_bytes"]
        assert offloaded(document) <= memory["host_ram_available_bytes"] / 2
        limit = memory["unit_limit_bytes"]
        if limit is not None:
            tmp = document["ram_disk"]["size_bytes"] if document["ram_disk"]["enabled"] else 0
            assert limit >= offloaded(document)
            assert limit + tmp <= memory["host_ram_available_bytes"]
