"""What an inventory asks for in dead flags is done in today's, and the plan says so."""

from __future__ import annotations

from typing import Any

import pytest
from plan_inputs import HUGE, blocked_by, found, gpu_facts, lab_facts, plan

from kimi_prov.planner.engine import vllm

GIB = 1 << 30


def line(document: dict[str, Any]) -> list[str]:
    return list(document["instances"][0]["argv"])


def value(document: dict[str, Any], flag: str) -> str:
    return line(document)[line(document).index(flag) + 1]


def replaced(document: dict[str, Any]) -> dict[str, str]:
    rows = found(document, "engine.flag_replaced")
    return {row["observed"].split(":")[1].strip(): str(row["required"]) for row in rows}


def test_the_whole_command_line_of_reference_002_is_planned_in_todays_flags() -> None:
    document = plan(
        gpu_facts(),
        engine_args={
            "swap-space": 32,
            "enable-expert-parallel": True,
            "enable-eplb": True,
            "eplb-config": {"window_size": 1000, "step_interval": 1000},
            "skip-non-local-expert-weights": True,
            "quantization-param-path": "/scales.json",
            "kv-cache-dtype": "fp8",
        },
        **HUGE,
    )
    assert blocked_by(document) == set()
    assert value(document, "--kv-offloading-size") == "256"
    assert "--enable-ep-weight-filter" in line(document)
    assert not {"--swap-space", "--enable-eplb", "--eplb-config"} & set(line(document))
    assert set(replaced(document)) == {
        *["swap-space", "skip-non-local-expert-weights", "quantization-param-path"],
    }
    assert replaced(document)["swap-space"] == "--kv-offloading-size 256"
    left = found(document, "engine.flag_left_out")
    assert [row["severity"] for row in left] == ["warning"]
    assert "--enable-eplb, --eplb-config" in left[0]["title"]
    assert "CompressedTensorsWNA16MarlinMoEMethod" in left[0]["observed"]


def test_the_cache_that_moves_out_is_counted_in_memory() -> None:
    without = plan(gpu_facts(), **HUGE)["memory"]["host_ram_required_bytes"]
    document = plan(gpu_facts(), engine_args={"swap-space": 32}, **HUGE)
    assert document["memory"]["host_ram_required_bytes"] - without == 256 * GIB


@pytest.mark.parametrize(
    ("version", "flag"), [("0.15.0", None), ("0.19.1", "--enable-ep-weight-filter")]
)
def test_a_replacement_that_the_version_lacks_is_left_out(version: str, flag: str | None) -> None:
    document = plan(
        gpu_facts(),
        engine_version=version,
        engine_args={"skip-non-local-expert-weights": True},
        **HUGE,
    )
    assert ("--enable-ep-weight-filter" in line(document)) == (flag is not None)
    assert found(document, "engine.flag_replaced")


def test_experts_are_balanced_where_the_format_allows_it() -> None:
    args = {"enable-expert-parallel": True, "enable-eplb": True, "num-redundant-experts": 16}
    without = plan(gpu_facts(), weights_format="nvfp4", **HUGE)
    document = plan(gpu_facts(), engine_args=args, weights_format="nvfp4", **HUGE)
    assert "--enable-eplb" in line(document)
    assert value(document, "--eplb-config") == '{"num_redundant_experts": 16}'
    more = document["memory"]["weights_bytes_per_gpu"] - without["memory"]["weights_bytes_per_gpu"]
    # 16 of 384 experts of each layer, over 8 GPUs.
    assert more == pytest.approx(570_793_000_000 * 16 / 384 / 8, rel=0.01)


def test_load_format_and_graph_sizes() -> None:
    args = {"load-format": "compressed-tensors", "cuda-graph-sizes": [1, 8, 64]}
    document = plan(gpu_facts(), engine_args=args, **HUGE)
    assert "--load-format" not in line(document)
    assert value(document, "--max-cudagraph-capture-size") == "64"
    assert (
        replaced(document)["load-format"] == "nothing; the format is read from the model's config"
    )


def test_what_the_inventory_says_in_todays_words_wins() -> None:
    args = {"swap-space": 32, "kv-offloading-size": 64}
    assert value(plan(gpu_facts(), engine_args=args, **HUGE), "--kv-offloading-size") == "64"


def test_without_a_gpu_there_is_no_cache_to_move_out() -> None:
    document = plan(lab_facts(), engine_args={"swap-space": 4})
    assert not {"--swap-space", "--kv-offloading-size"} & set(line(document))
    assert found(document, "engine.flag_replaced")


@pytest.mark.parametrize("odd", [-1, True, "x", [], {"a": 1}, 0])
def test_odd_values_end_in_no_traceback(odd: object) -> None:
    args = {"swap-space": odd, "num-redundant-experts": odd, "cuda-graph-sizes": odd}
    document = plan(gpu_facts(), engine_args=args, **HUGE)
    assert "--swap-space" not in line(document)


@pytest.mark.parametrize(
    ("args", "off"),
    [
        ({"enforce-eager": True}, "enforce-eager"),
        ({"enforce-eager": False, "optimization-level": 3}, None),
        ({"optimization-level": "0"}, "optimization-level 0"),
        ({"compilation-config": '{"cudagraph_mode": "NONE"}'}, "cudagraph_mode NONE"),
        ({"compilation-config": {"cudagraph_mode": "none"}}, "cudagraph_mode NONE"),
        ({"compilation-config": {"cudagraph_mode": "FULL"}}, None),
    ],
)
def test_what_switches_graphs_off_is_named(args: dict[str, Any], off: str | None) -> None:
    found = vllm.find_graphs_off_flag(args)
    assert (found or "").startswith(off or "")
    assert (found is None) == (off is None)


def test_eager_mode_and_a_small_context_of_reference_001() -> None:
    document = plan(
        gpu_facts(8, 81559),
        model="kimi-k2-thinking",
        weights_source=None,
        context=12288,
        concurrency=1,
        engine_args={"enforce-eager": True},
    )
    assert blocked_by(document) == set()
    assert "--enforce-eager" in line(document)
    assert value(document, "--max-model-len") == "12288"
    assert value(document, "--gpu-memory-utilization") == "0.95"


def test_amd_cards_get_no_plan_for_cuda() -> None:
    facts = gpu_facts(8, 196608)
    facts["nvidia"] = None
    for card in facts["gpus"]:
        card |= {"vendor": "amd", "model": "AMD Instinct MI300X", "compute_capability": None}
    document = plan(facts, **HUGE)
    assert document["engine"]["variant"] == "rocm"
    assert "cuda" not in document["engine"]["env_name"]
    assert document["engine"]["cuda"] is None
    assert document["engine"]["provisioned"] is False
    assert "ROCm" in found(document, "engine.not_provisioned")[0]["observed"]
    hybrid = plan(facts, engine="ktransformers", **HUGE)
    assert "engine.no_gpu" in blocked_by(hybrid)


def test_the_plan_names_torch_and_the_cuda_that_it_was_built_for() -> None:
    older, default = plan(gpu_facts(), engine_version="0.19.1", **HUGE), plan(gpu_facts(), **HUGE)
    assert (older["engine"]["torch"], older["engine"]["cuda"]) == ("2.10.0", "12.8")
    assert (default["engine"]["torch"], default["engine"]["cuda"]) == ("2.14.0", "13.0")
    assert older["engine"]["provisioned"] is True
    assert default["engine"]["provisioned"] is True


def near(nodes: list[int | None]) -> dict[str, Any]:
    facts = gpu_facts(len(nodes))
    for card, node in zip(facts["gpus"], nodes, strict=True):
        card["numa_node"] = node
    return facts


def test_workers_are_bound_to_the_nodes_of_their_gpus() -> None:
    nodes: list[int | None] = [0, 0, 0, 0, 1, 1, 1, 1]
    new = plan(near(nodes), **HUGE)
    place = line(new).index("--numa-bind-nodes")
    assert line(new)[place + 1 : place + 9] == [str(node) for node in nodes]
    assert new["instances"][0]["numactl"] == []
    assert new["instances"][0]["gpu_nodes"] == nodes
    old = plan(near(nodes), engine_version="0.19.1", **HUGE)["instances"][0]
    assert old["numactl"] == ["numactl", "--interleave=all"]
    assert old["gpu_nodes"] == nodes


def test_gpus_of_one_node_keep_the_engine_there() -> None:
    old = {"engine_version": "0.19.1", **HUGE}
    one = plan(near([1] * 8), **old)["instances"][0]
    assert one["numactl"] == ["numactl", "--cpunodebind=1", "--membind=1"]
    assert one["numa_nodes"] == [1]
    assert one["cpus"] == "48-95"
    unknown = plan(near([1, 1, 1, None, 1, 1, 1, 1]), **old)["instances"][0]
    assert unknown["numactl"] == ["numactl", "--interleave=all"]
    assert unknown["gpu_nodes"] == []
