"""The RAM disk and the page cache, seen in the plan."""

from __future__ import annotations

from typing import Any

import pytest
from plan_inputs import GIB, HUGE, blocked_by, found, hybrid_facts, metal_facts, plan, quoted

SERVED = {
    "kv_dtype": None,
    "tensor": 1,
    "pipeline": 1,
    "data": 1,
    "decode_context": 1,
    "instances": 1,
    "concurrency": None,
    "requests": None,
    "gpu_share": None,
}


@pytest.mark.parametrize(
    # The experts lie in halves on the nodes, each beside half of the files.
    ("gib", "enabled"),
    [(768, False), (1024, False), (1536, True), (2048, True)],
)
def test_the_ram_disk_needs_room_for_the_weights_twice(gib: int, enabled: bool) -> None:
    facts = metal_facts(gib=gib, cores=96)
    document = plan(facts, experts="kt", context=8192, concurrency=1, **HUGE)
    assert document["ram_disk"]["enabled"] is enabled
    assert document["warm"]["enabled"] is not enabled
    assert document["model"]["serve_dir"].startswith("/srv/kimi/ram") is enabled


def test_the_size_is_that_of_the_mount_options() -> None:
    """Whoever reads the plan and the kernel, which mounts it, are told the same number of bytes."""
    document = plan(metal_facts(gib=2048, cores=96), **HUGE)["ram_disk"]
    assert document["enabled"] is True
    assert f"size={document['size_bytes']}" in document["options"].split(",")


def test_the_reason_tells_a_short_node_from_short_memory() -> None:
    facts = hybrid_facts(gib=1536)
    even = facts["numa"]["nodes"][0]["memory_total_bytes"]
    assert plan(facts, **HUGE)["ram_disk"]["enabled"] is True
    moved = even * 3 // 10
    facts["numa"]["nodes"][0]["memory_total_bytes"] += moved
    facts["numa"]["nodes"][1]["memory_total_bytes"] -= moved
    assert plan(facts, **HUGE)["ram_disk"]["reason"].startswith("a NUMA node does not hold")
    small = plan(hybrid_facts(gib=1024), **HUGE)["ram_disk"]
    assert small["reason"].startswith("memory does not hold")


def test_an_impossible_ram_disk_is_refused_and_never_is_kept() -> None:
    facts = metal_facts(gib=768, cores=96)
    forced = plan(facts, context=8192, concurrency=1, ram_disk="always", **HUGE)
    assert "ram_disk.memory" in blocked_by(forced)
    assert plan(ram_disk="never")["ram_disk"]["enabled"] is False


def test_noswap_only_where_the_kernel_knows_it() -> None:
    facts = metal_facts()
    assert "noswap" not in plan(facts)["ram_disk"]["options"]
    facts["memory"]["swap_total_bytes"] = GIB
    assert found(plan(facts), "ram_disk.swap")
    facts["host"]["kernel"] = "6.12.4"
    assert "noswap" in plan(facts)["ram_disk"]["options"]
    assert not found(plan(facts), "ram_disk.swap")


@pytest.mark.parametrize(
    ("served", "settings", "huge"),
    [
        (None, {}, True),
        ({"ram_pages": "huge"}, {}, True),
        ({"ram_pages": None}, {}, True),
        ({"ram_pages": "small"}, {}, False),
        ({"ram_pages": "small"}, {"choose_anew": True}, True),
    ],
)
def test_a_new_ram_disk_has_huge_pages_and_one_that_serves_stays(
    served: dict[str, Any] | None, settings: dict[str, Any], huge: bool
) -> None:
    facts = metal_facts()
    plain = plan(facts)
    engine = {"engine": plain["engine"]["name"], "version": plain["engine"]["version"]}
    if served is not None:
        facts["kimi"]["served"] = {**SERVED, **engine, "model": plain["model"]["name"], **served}
    options = plan(facts, **settings)["ram_disk"]["options"].split(",")
    assert ("huge=always" in options) is huge


def test_a_kernel_without_huge_pages_is_not_asked_for_them() -> None:
    facts = metal_facts()
    facts["tunables"]["thp"] = None
    assert "huge" not in plan(facts)["ram_disk"]["options"]


def test_nodes_with_a_gap_cannot_be_written_without_a_comma() -> None:
    facts = metal_facts()
    facts["numa"]["nodes"][1]["id"] = 2
    facts["numa"]["nodes"].append({**facts["numa"]["nodes"][0], "id": 3})
    options = plan(facts)["ram_disk"]["options"].split(",")
    assert options[-1] == "mpol=interleave"


def test_a_ram_disk_beside_a_hybrid_needs_room_on_each_node() -> None:
    assert plan(hybrid_facts(gib=1536), **HUGE)["ram_disk"]["enabled"] is True
    assert plan(hybrid_facts(gib=1024), **HUGE)["ram_disk"]["enabled"] is False
    assert plan(quoted("quote-xeon-8468-768gb"), **HUGE)["ram_disk"]["enabled"] is False
