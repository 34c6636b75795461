"""NUMA nodes, CPUs and threads of every instance, seen in the plan."""

from __future__ import annotations

from plan_inputs import (
    HUGE,
    argument,
    blocked_by,
    found,
    hybrid_facts,
    metal_facts,
    plan,
)


def test_on_two_nodes_a_small_model_is_bound_to_one() -> None:
    document = plan(metal_facts(nodes=2, gib=8, cores=4))
    instance = document["instances"][0]
    assert instance["numactl"] == ["numactl", "--cpunodebind=0", "--membind=0"]
    assert instance["cpus"] == "0-1"
    assert instance["env"]["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert "mpol=interleave:0-1" in document["ram_disk"]["options"]


def test_on_two_nodes_a_large_model_is_spread_over_both() -> None:
    document = plan(metal_facts(nodes=2, gib=1024, cores=128), **HUGE)
    instance = document["instances"][0]
    assert instance["numactl"] == ["numactl", "--interleave=all"]
    assert instance["numa_nodes"] == [0, 1]


def test_a_virtual_machine_with_a_small_node_is_believed_its_whole_memory() -> None:
    facts = metal_facts(nodes=1, gib=125, cores=16)
    facts["host"]["virtualization"] = "kvm"
    facts["numa"]["nodes"][0]["memory_total_bytes"] = 4443 << 20
    document = plan(facts, context=4096, concurrency=64)
    assert blocked_by(document) == set()
    assert document["instances"][0]["numactl"] == ["numactl", "--cpunodebind=0", "--membind=0"]
    assert found(document, "numa.node_size")


def test_every_node_gets_an_engine_of_its_own_where_it_holds_one() -> None:
    document = plan(metal_facts(gib=64), concurrency=9)
    bound = [(row["numactl"], row["cpus"], row["port"]) for row in document["instances"]]
    assert bound == [
        (["numactl", "--cpunodebind=0", "--membind=0"], "0-7", 8001),
        (["numactl", "--cpunodebind=1", "--membind=1"], "8-15", 8002),
    ]
    assert document["proxy"]["backends"] == [{"index": 0, "port": 8001}, {"index": 1, "port": 8002}]
    argv = document["instances"][1]["argv"]
    assert argv[argv.index("--max-num-seqs") + 1] == "5"
    threads = [row["env"]["VLLM_CPU_OMP_THREADS_BIND"] for row in document["instances"]]
    assert threads == ["2-7", "10-15"]
    # Weights, cache and processes are there twice.
    alone = plan(metal_facts(gib=64), concurrency=5, instances=1)
    both, one = (d["memory"]["host_parts"] for d in (document, alone))
    assert [b["bytes"] / o["bytes"] for b, o in zip(both, one, strict=True)] == [2, 2, 2, 1]
    assert len(alone["instances"]) == 1


def test_one_engine_where_requests_or_memory_are_for_one() -> None:
    assert len(plan(metal_facts(gib=64), concurrency=1)["instances"]) == 1
    uneven = metal_facts(gib=64)
    uneven["numa"]["nodes"][1]["memory_total_bytes"] = 2 << 30
    document = plan(uneven)
    assert document["instances"][0]["numactl"] == ["numactl", "--cpunodebind=0", "--membind=0"]
    assert len(document["instances"]) == 1
    asked = plan(uneven, instances=2)
    assert "numa.node_memory" in blocked_by(asked)
    assert "node 1" in found(asked, "numa.node_memory")[0]["observed"]


def test_more_engines_than_nodes_are_refused() -> None:
    document = plan(metal_facts(gib=64), instances=3)
    assert "numa.instances" in blocked_by(document)
    assert "kimi_instances" in found(document, "numa.instances")[0]["fix"]


def test_threads_are_cores_and_two_are_left_free() -> None:
    facts = metal_facts(nodes=1, gib=64, cores=16)
    facts["cpu"] |= {"online": "0-15", "primary": "0-7", "threads": 16, "cores": 8}
    env = plan(facts)["instances"][0]["env"]
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "2-7"


def test_the_inventory_may_set_the_threads_of_an_engine_on_processors() -> None:
    facts = metal_facts(nodes=1, gib=64, cores=16)
    bound = plan(facts, threads=4)["instances"][0]["env"]["VLLM_CPU_OMP_THREADS_BIND"]
    assert bound == "12-15"
    every = plan(facts, threads=64)["instances"][0]["env"]["VLLM_CPU_OMP_THREADS_BIND"]
    assert every == "0-15"


def test_the_inventory_may_set_the_threads_of_pools() -> None:
    document = plan(hybrid_facts(), **HUGE, engine="ktransformers", threads=21)
    assert argument(document, "--kt-cpuinfer") == "20"
