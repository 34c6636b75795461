"""Speed of vLLM on processors: 4-bit experts by its plugin's kernel, by kt-kernel or by vLLM.

No published row is of this engine, so it was measured (catalog/speed_plugin.yaml: machines of 16
cores with AMX and one NUMA node, 2026-11-20 to 27, models cut to a few layers of Kimi's
dimensions). The parts of a step are added up, with constants from these rows:

    step  = loop + layers x operations + bf16 weights / stream of the node that holds them
            + weights in int8 / own rate
            + expert layers x experts (+ hand-over, with kt-kernel)
    step in one call = loop + layers x waits + all weights / own rate of all nodes
            + cache / own rate of the node that holds it + positions x layers x each / threads
    experts by the own kernel = bytes / own rate of its nodes + weights x tokens x each / threads
    experts by kt-kernel = the larger of bytes / (0.9 x stream of all nodes with a slice)
            and (weights of distinct experts x first + weights x tokens x each) / threads
    experts by vLLM      = bytes / stream

The own kernel reads weights in int8 as it reads its experts. A prompt counts as in bf16, although
one of 512 tokens was 1.4 times as fast in int8.

The own rate is 1.5 times what a streaming test writes and reads, but no more than the kernel's
share of what can be read of the channels' theoretical rate.

A range is as wide as the largest error of a row. Its low end also leaves out the gain of a second
node, and assumes the slowest way without AVX512: neither was measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from kimi_prov.planner.engine.expert_backend import CHUNK_TOKENS, INT8_BYTES
from kimi_prov.planner.throughput import first_token
from kimi_prov.planner.throughput.estimate import (
    estimate_start,
    name_basis,
    scale_range,
    widen_seconds,
)
from kimi_prov.planner.throughput.inputs import Estimate, Range
from kimi_prov.planner.throughput.physics import Parts

if TYPE_CHECKING:
    from kimi_prov.planner.decisions import ExpertBackend
    from kimi_prov.planner.throughput.inputs import ModelShape, Serving

# Picoseconds that a core takes for a weight in kt-kernel's RAWINT4: to load it, and to multiply it
# with one token, either alone or in a matrix, where more than so many tokens use an expert.
_FIRST_PS, _ALONE_PS, _MATRIX_PS = 55.0, 35.0, 16.8
_MIN_MATRIX_TOKENS = 4
# GB/s of RAWINT4 in memory that a core reads for one token.
CORE_GB_S: Final = 0.625e3 / (_FIRST_PS + _ALONE_PS)
# The AVX2 build takes so many times as long: 7 at one token, 4 at 64.
AVX2_FACTORS: Final = {"low": 4.0, "expected": 5.3, "high": 7.0}
# Shares of a streaming test's rate. kt-kernel reaches 65 of 72.8 GB/s where memory is the limit.
# The own kernel reads and does not write, so it reaches more than a triad.
_KT_KERNEL_STREAM_SHARE = 0.9
_OWN_KERNEL_STREAM_SHARE = 1.5
# Of the channels' theoretical rate a kernel for experts was seen to read this share: 1.45 of 1.69
# TB/s on two Xeon 6980P (the catalogue's row of that processor). The own kernel reaches 0.86 of
# what the same threads read (tests/data/recordings/own-kernel/layer.json).
READ_OF_THEORY: Final = 0.85
_OWN_KERNEL_READ_SHARE = 0.86
# Requests that a step in one call takes; more are computed layer by layer.
_ONE_CALL_REQUESTS = 64
# Picoseconds that a core of the own kernel takes to multiply a weight with one token.
_OWN_EACH_PS: Final = {"amx": 8.5, "avx512": 14.0, "arm": 14.0, "avx2": 30.0}
# Seconds of a step: the scheduler's loop, a layer's small operations, a layer's two hand-overs
# between vLLM's threads and the pools.
_LOOP_S, _LAYER_S, _HAND_OVER_S = 2.9e-3, 0.8e-3, 2.4e-3
# Seconds of a layer in one call in which nothing is read: 1.16 ms of four layers (step-parts.json
# beside layer.json). Seconds that a core takes for a position of the cache in a layer: 16 cores
# took 0.35 ms for 1,000; AVX2 alone took 6 times as long as AVX512 on one core of an EPYC.
_WAITS_S = 0.3e-3
_POSITION_S: Final = {"amx": 5.6e-6, "avx512": 5.6e-6, "arm": 5.6e-6, "avx2": 34e-6}
# GFLOP/s of a core on a prompt with AMX: bf16 weights, and vLLM's own 4-bit experts. Without AMX it
# is lower by the ratio that the fitted rows of other engines show.
_BF16_GFLOPS, _OWN_GFLOPS = 280.0, 212.0
_SHARE_OF_AMX = {"amx": 1.0, "avx512": 0.35, "arm": 0.35, "avx2": 0.12}
# Start: the engine without experts, GB/s at which kt-kernel fills its buffers from the page cache,
# and seconds of repacking a weight for vLLM's own experts (0.12 to 0.15 s an expert here, 0.21 to
# 0.26 on a slower machine). Imports and the server take 79 s on two busy cores, less on more.
_ENGINE_START_S, _FILL_GB_S, _REPACK_S = 2.7, 4.2, 4.2e-9
_SERVER_S = 30.0
# The largest distance of a measured row from the model, as a factor.
DECODE_SPREAD, PREFILL_SPREAD, LOAD_SPREAD = 1.65, 2.2, 1.5


@dataclass(frozen=True)
class Layout:
    """The threads and NUMA nodes on which the engine runs.

    `threads` compute experts on `nodes` NUMA nodes (kt-kernel's pools, or vLLM's own threads). Each
    node streams `node_gb_s` and reads at most `read_gb_s`. `engine_threads` are vLLM's, on the one
    node with its weights. Of these weights, `int8_params` are kept in int8. `one_call`: the own
    kernel computes a step's layers in one call, all weights cut over its nodes.
    """

    backend: ExpertBackend
    threads: int
    nodes: int
    engine_threads: int
    node_gb_s: float
    vector: Literal["avx2", "avx512", "amx", "arm"] = "amx"
    kernel_times: float = 1.0
    int8_params: float = 0.0
    read_gb_s: float = math.inf
    one_call: bool = False

    @property
    def own_gb_s(self) -> float:
        """What the own kernel reads of one node."""
        return min(
            _OWN_KERNEL_STREAM_SHARE * self.node_gb_s, _OWN_KERNEL_READ_SHARE * self.read_gb_s
        )


def estimate_speed(
    model: ModelShape,
    layout: Layout,
    serving: Serving,
    disk_gb_s: float | None = None,
) -> Estimate:
    """Estimate speeds in tokens a second, times to load and to the first token in seconds."""
    slow, likely, fast = _list_cases(layout)
    parts = estimate_decode(model, likely, serving)
    speeds = [1 / estimate_decode(model, case, serving).total for case in (slow, likely, fast)]
    reading = [1 / estimate_prefill(model, case, serving) for case in (slow, likely, fast)]
    one, prompt = _make_range(speeds, DECODE_SPREAD), _make_range(reading, PREFILL_SPREAD)
    queue = first_token.Queue(
        prompt=serving.input_tokens / prompt.expected,
        step=estimate_step(model, likely, serving).total,
    )
    taken, rest = _estimate_fill_time(model, layout, serving), _ENGINE_START_S + _SERVER_S
    return Estimate(
        decode_tok_s=one,
        aggregate_tok_s=scale_range(one, serving.running),
        prefill_tok_s=prompt,
        ttft_s=first_token.estimate_first_token(serving, prompt, queue),
        single_ttft_s=first_token.estimate_first_token(serving, prompt),
        load_s=estimate_start(
            model, serving, disk_gb_s, widen_seconds(taken, LOAD_SPREAD), rest, LOAD_SPREAD
        ),
        basis=name_basis(parts),
        kind="cpu",
    )


def estimate_decode(model: ModelShape, layout: Layout, serving: Serving) -> Parts:
    """Estimate the seconds between two tokens of a request, with the prompts of other requests."""
    one = estimate_step(model, layout, serving)
    waits = serving.others * serving.input_tokens / serving.output_tokens
    return one + Parts(kernel=waits * estimate_prefill(model, layout, serving)) if waits else one


def estimate_step(model: ModelShape, layout: Layout, serving: Serving) -> Parts:
    """Estimate the seconds of a step that gives each running request a token, without prompts."""
    batch = serving.running
    positions = batch * (serving.input_tokens + serving.output_tokens / 2)
    cache = positions * model.kv_bytes_per_token * serving.kv_dtype_bytes / 2
    plain = (model.always_params - layout.int8_params) * serving.weights.rest
    packed = layout.int8_params * INT8_BYTES
    experts = estimate_experts(model, layout, serving, batch).times(model.moe_layers)
    if layout.one_call and batch <= _ONE_CALL_REQUESTS:
        latency = _LOOP_S + _WAITS_S * model.layers
        read = (plain + packed) / layout.nodes + cache
        attended = model.layers * positions * _POSITION_S[layout.vector] / layout.threads
        return experts + Parts(
            latency=latency, bandwidth=read / (layout.own_gb_s * 1e9), kernel=attended
        )
    nodes = layout.nodes if layout.backend == "native" else 1
    read = (plain + cache) / layout.node_gb_s + packed / (nodes * layout.own_gb_s)
    return experts + Parts(latency=_estimate_overhead(model, layout), bandwidth=read / 1e9)


def estimate_prefill(model: ModelShape, layout: Layout, serving: Serving) -> float:
    """Estimate the seconds for one token of a prompt."""
    tokens = min(serving.input_tokens, CHUNK_TOKENS)
    cores = layout.engine_threads * 1e9 * _SHARE_OF_AMX[layout.vector]
    attended = model.layers * model.attention_width * serving.input_tokens / 2
    dense = 2 * (model.always_params + attended) * tokens / (cores * _BF16_GFLOPS)
    routed = estimate_experts(model, layout, serving, tokens).total
    if layout.backend == "vllm":
        flops = 2 * tokens * model.experts_per_token * model.params_per_expert
        routed += flops / (cores * _OWN_GFLOPS)
    return (_estimate_overhead(model, layout) + dense + model.moe_layers * routed) / tokens


def estimate_experts(model: ModelShape, layout: Layout, serving: Serving, tokens: float) -> Parts:
    """Estimate the seconds of a layer's routed experts, without hand-over and vLLM's arithmetic."""
    touched = model.distinct_experts(tokens) * model.params_per_expert
    read = touched * serving.weights.cpu_expert / (layout.nodes * layout.node_gb_s * 1e9)
    if layout.backend == "vllm":
        return Parts(bandwidth=read)
    if layout.backend == "native":
        read = touched * serving.weights.cpu_expert / (layout.nodes * layout.own_gb_s * 1e9)
        each = _OWN_EACH_PS[layout.vector] * 1e-12 / layout.threads
        met = tokens * model.experts_per_token * model.params_per_expert
        return Parts(bandwidth=read, kernel=met * each)
    read /= _KT_KERNEL_STREAM_SHARE
    met = tokens * model.experts_per_token * model.params_per_expert
    alone = tokens * model.experts_per_token <= _MIN_MATRIX_TOKENS * model.experts
    work = (touched * _FIRST_PS + met * (_ALONE_PS if alone else _MATRIX_PS)) * 1e-12
    work *= layout.kernel_times / layout.threads
    return Parts(bandwidth=read) if read > work else Parts(kernel=work)


def estimate_start_time(model: ModelShape, layout: Layout, serving: Serving) -> float:
    """Estimate the seconds from the end of the imports to the first answer, weights in memory."""
    return _ENGINE_START_S + _estimate_fill_time(model, layout, serving)


def _estimate_fill_time(model: ModelShape, layout: Layout, serving: Serving) -> float:
    routed = model.moe_layers * model.experts * model.params_per_expert
    if layout.backend == "vllm":
        return routed * _REPACK_S
    return routed * serving.weights.cpu_expert / (_FILL_GB_S * 1e9)


def _estimate_overhead(model: ModelShape, layout: Layout) -> float:
    """Estimate the seconds of a step that do not depend on weights."""
    handed = _HAND_OVER_S * model.moe_layers if layout.backend == "kt" else 0.0
    return _LOOP_S + _LAYER_S * model.layers + handed


def compare_with_one_node(model: ModelShape, layout: Layout, serving: Serving) -> float:
    """Return how many times as fast steps are expected as where one node alone counts."""
    one, likely = _take_one_node(layout), _list_cases(layout)[1]
    times = [estimate_decode(model, case, serving).total for case in (one, likely)]
    return times[0] / times[1]


def _take_one_node(layout: Layout) -> Layout:
    return replace(layout, nodes=1, threads=layout.threads // layout.nodes)


def _list_cases(layout: Layout) -> tuple[Layout, Layout, Layout]:
    """List the layout at worst, as expected, and at best."""
    one = _take_one_node(layout)
    # Both kernels' threads read their own nodes; vLLM's pages and threads are on them by chance.
    likely = one if layout.backend == "vllm" else layout
    if layout.vector != "avx2":
        return one, likely, layout
    return (
        replace(one, kernel_times=AVX2_FACTORS["high"]),
        replace(likely, kernel_times=AVX2_FACTORS["expected"]),
        replace(layout, kernel_times=AVX2_FACTORS["low"]),
    )


def _make_range(speeds: list[float], spread: float) -> Range:
    return Range(speeds[0] / spread, speeds[1], speeds[2] * spread)
