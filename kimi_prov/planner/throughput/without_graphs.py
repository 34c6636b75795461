"""The time of a step without CUDA graphs, when GPUs wait for the processor to start each kernel.

With graphs the processor starts a whole step at once. Without them (vLLM's `enforce-eager`) it
starts every kernel of every layer separately, and cards that compute one token faster than that
wait for it. So a step takes the longer of two times: that with graphs, or layers x seconds of a
layer.

The seconds of a layer depend on the processor, and the fit has no row of such a run. The range
holds what was measured: 45 ms a token for K2.6's 61 layers over four hosts with H100, where graphs
took 11 ms (github.com/huggingface/physics-intern/pull/2); and on three virtual machines with two
H200 each, 20 ms for five of Kimi K2's layers, 9 ms for four and 72 ms for 24
(tests/data/recordings/gpu-reports/h200-x2-full, h200-x2-full-2 and h200-x2-full-4). All of them
count a step's fixed costs (scheduler, sampler, head) as if they were part of each layer. With 24
layers, 3.0 ms each, this is a small part: four layers with graphs took 3.4 ms in all. A prompt of
3,072 tokens was as fast as with graphs, because it was enough work for the cards. A short prompt
waits as a step does.
"""

from __future__ import annotations

from kimi_prov.planner.throughput.inputs import Range

# Seconds in which a processor starts a layer's kernels: a little below the fastest and above the
# slowest measurement; the expected value is the geometric mean of the four.
LAYER_S = Range(0.0006, 0.0021, 0.0043)


def slow_down(graphs: Range, layers: int, tokens: float = 1, passes: float = 1) -> Range:
    """Convert the tokens a second with graphs to those without, for `tokens` in `passes` passes."""
    starts = passes * layers / tokens
    return Range(
        min(graphs.low, 1 / (starts * LAYER_S.high)),
        min(graphs.expected, 1 / (starts * LAYER_S.expected)),
        min(graphs.high, 1 / (starts * LAYER_S.low)),
    )


def estimate_seconds(graphs: float, layers: int, passes: float = 1) -> float:
    """Convert the seconds of `passes` passes with graphs to those without."""
    return max(graphs, passes * layers * LAYER_S.expected)
