"""The model of vLLM with the plugin's experts is held to the rows that it was made from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kimi_prov.catalog import loader
from kimi_prov.planner import throughput
from kimi_prov.planner.throughput import plugin
from kimi_prov.planner.throughput.subjects import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = yaml.safe_load((CATALOGUE / "speed_plugin.yaml").read_text())
MACHINES = {row["name"]: row for row in ROWS["machines"]}
FORMAT = {
    "native": throughput.find_weight_format("native-int4"),
    "kt": throughput.find_weight_format("rawint4"),
    "vllm": throughput.find_weight_format("vllm-cpu-int4"),
}
K25 = throughput.make_shape("kimi-k2.5", loader.load_catalogue().model("kimi-k2.5").architecture)


def cut(layers: int, experts: int, vocabulary: int = 8192) -> throughput.ModelShape:
    """The measured models: a dense layer and `layers` with experts, of Kimi's dimensions."""
    hidden, width = 7168, 2048
    attention = hidden * 1536 + 1536 * 64 * 192 + hidden * 576 + 512 * 64 * 256 + 64 * 128 * hidden
    expert = 3 * hidden * width
    always = attention + 3 * hidden * 18432 + hidden * vocabulary
    always += layers * (attention + expert + experts * hidden)
    return throughput.ModelShape(
        name="cut",
        layers=layers + 1,
        moe_layers=layers,
        experts=experts,
        experts_per_token=8,
        params_per_expert=expert,
        always_params=always,
        total_params=always + layers * experts * expert,
        kv_bytes_per_token=1152 * (layers + 1),
        attention_width=20480,
    )


def layout(row: dict[str, Any], way: plugin.Layout = "kt", threads: int = 14) -> plugin.Layout:
    machine = MACHINES[row["machine"]]
    return plugin.Layout(way, threads, machine["nodes"], threads, machine["stream_gb_s"])


def packed(shape: throughput.ModelShape) -> float:
    """Weights that int8 takes: all that are no routed experts, but routers and what MLA splits."""
    routers = shape.moe_layers * shape.experts * 7168
    return shape.always_params - routers - shape.layers * 512 * 64 * 256


def serving(way: str, tokens: int = 1, prompt: float = 8) -> throughput.Serving:
    return throughput.Serving(
        "vllm",
        FORMAT[way],
        concurrency=tokens,
        input_tokens=prompt,
        output_tokens=1e9,  # no other prompt delays a step
        weights_in_memory=True,
        kv_dtype_bytes=1e-9,
    )


def compared() -> Iterator[tuple[str, str, float]]:
    """Each measured figure: its kind, its name, and the model's value over it."""
    for way, rows in (("native", ROWS["own_kernel"]), ("kt", ROWS["kernel"])):
        for row in rows:
            shape, where = cut(1, row["experts"]), layout(row, way, row["threads"])
            for tokens, ms in row["ms"].items():
                found = plugin.estimate_experts(shape, where, serving(way), tokens)
                yield "decode", f"{row['by']} {row['threads']} {tokens}", found.total * 1e3 / ms
    for row in ROWS["engine"]:
        way = row["way"]
        shape = cut(row["layers"], row["experts"], row.get("vocabulary", 8192))
        name = f"{way} {row['layers']}x{row['experts']}"
        where = layout(row, way)
        if row.get("dense") == "int8":
            where = replace(where, int8_params=packed(shape))
            name += " int8"
        for tokens, ms in row["ms"].items():
            step = plugin.estimate_decode(shape, where, serving(way, tokens)).total
            yield "decode", f"{name} {tokens}", step * 1e3 / ms
        per_token = plugin.estimate_prefill(shape, where, serving(way, prompt=512))
        yield "prefill", name, 1 / per_token / row["prefill_tok_s"]
        if "start_s" in row:
            start = plugin.estimate_start_time(shape, where, serving(way))
            yield "start", name, start / row["start_s"]


FIGURES = list(compared())


@pytest.mark.parametrize(
    ("kind", "spread"),
    [
        ("decode", plugin.DECODE_SPREAD),
        ("prefill", plugin.PREFILL_SPREAD),
        ("start", plugin.LOAD_SPREAD),
    ],
)
def test_every_measured_figure_lies_in_the_range_and_the_range_is_no_wider(
    kind: str, spread: float
) -> None:
    off = [(max(ratio, 1 / ratio), name) for found, name, ratio in FIGURES if found == kind]
    assert [row for row in off if row[0] > spread] == []
    assert max(off)[0] > spread * 0.9


def test_the_model_leans_to_neither_side() -> None:
    # Repacking is set between these machines and a slower one that was timed before.
    for kind in ("decode", "prefill"):
        ratios = sorted(ratio for found, _, ratio in FIGURES if found == kind)
        assert 0.9 < ratios[len(ratios) // 2] < 1.1, kind


def xeon(way: plugin.Layout = "kt", **more: Any) -> plugin.Layout:
    """Two Xeon 8468, two cores of each node left."""
    given = {"threads": 92, "nodes": 2, "engine_threads": 46, "node_gb_s": 230.4} | more
    return plugin.Layout(way, **given)


def asked(way: plugin.Layout = "kt", **more: Any) -> throughput.Estimate:
    one = throughput.Serving("vllm", FORMAT[way], weights_in_memory=True)
    return plugin.estimate_speed(K25, xeon(way, **more), one)


def test_a_dual_xeon_8468_is_expected_to_answer_two_to_four_tokens_a_second() -> None:
    found = asked()
    assert 1.5 < found.decode_tok_s.low < 2.5
    assert 2.5 < found.decode_tok_s.expected < 3.5
    assert 4 < found.decode_tok_s.high < 5.5
    assert found.basis == "latency-bound"
    assert 60 < found.load_s.low < found.load_s.high < 6 * 60


def test_the_own_kernel_on_one_node_is_faster_than_the_pools_on_two() -> None:
    """An engine's other weights are read from one node in any case."""
    own = asked("native", threads=46, nodes=1)
    assert 1.5 < own.decode_tok_s.expected / asked().decode_tok_s.expected < 2
    assert own.load_s.expected <= asked().load_s.expected


def test_vllms_own_experts_take_an_hour_to_start_and_answer_faster() -> None:
    own = asked("vllm")
    assert own.decode_tok_s.expected > asked().decode_tok_s.expected
    # What 16 cores were timed to take a layer on either day, sixty times.
    assert own.load_s.low < 57 * 60
    assert own.load_s.high > 100 * 60


def test_own_experts_meet_what_one_layer_took_where_memory_is_slow() -> None:
    """7.5 to 10.7 ms a layer at real size on 16 cores that stream 72.8 GB/s."""
    where = plugin.Layout("vllm", 14, 1, 14, 72.8)
    one, two = (
        plugin.estimate_decode(cut(layers, 384), where, serving("vllm")).total * 1e3
        for layers in (1, 2)
    )
    assert 7.5 < two - one < 10.7


def test_a_second_node_widens_the_range_and_avx2_does_so_more() -> None:
    def width(found: throughput.Estimate) -> float:
        return found.decode_tok_s.high / found.decode_tok_s.low

    single = asked(nodes=1, threads=46)
    assert width(single) == pytest.approx(plugin.DECODE_SPREAD**2)
    assert width(single) < width(asked()) < width(asked(vector="avx2"))
    assert asked(vector="avx2").decode_tok_s.expected < asked().decode_tok_s.expected


def test_a_disk_that_is_not_known_makes_the_start_less_sure() -> None:
    cold = throughput.Serving("vllm", FORMAT["kt"])
    unknown = plugin.estimate_speed(K25, xeon(), cold).load_s
    slow = plugin.estimate_speed(K25, xeon(), cold, disk_gb_s=0.5).load_s
    assert unknown.high / unknown.expected > slow.high / slow.expected
    assert slow.expected > 1000
