"""What a step of GPUs without CUDA graphs waits for: the processor that starts each kernel.

With graphs the processor starts a whole step at once. Without (vLLM's `enforce-eager`) it starts
every kernel of every layer by itself, and cards that compute one token faster than that wait for
it. So a step takes the longer of two times, that with graphs and layers x seconds of a layer.

Seconds of a layer depend on the processor, and no row of such a run is in the fit. The range holds
what was seen: 45 ms a token of K2.6's 61 layers over four hosts with H100, where graphs brought 11
(github.com/huggingface/physics-intern/pull/2), and of three virtual machines with two H200 each 20
ms of five of Kimi K2's layers, 9 ms of four and 72 ms of 24
(tests/data/recordings/gpu-reports/h200-x2-full, h200-x2-full-2 and h200-x2-full-4). All count what
a step costs once (scheduler, sampler, head) as if each layer had it; of the 24, 3.0 ms each, that
is little: four layers with graphs took 3.4 ms in all. A prompt of 3,072 tokens was work enough for
the cards: it was read as fast as with graphs. A short one waits as a step does.
"""

from __future__ import annotations

from kimi_prov.planner.throughput.inputs import Range

# Seconds in which a processor starts a layer's kernels, with a little beside the fastest and the
# slowest; expected: the mean of the four in proportion.
LAYER_S = Range(0.0006, 0.0021, 0.0043)


def slow_down(graphs: Range, layers: int, tokens: float = 1, passes: float = 1) -> Range:
    """Give the tokens a second of `tokens` that take so many passes, from those with graphs."""
    starts = passes * layers / tokens
    return Range(
        min(graphs.low, 1 / (starts * LAYER_S.high)),
        min(graphs.expected, 1 / (starts * LAYER_S.expected)),
        min(graphs.high, 1 / (starts * LAYER_S.low)),
    )


def estimate_seconds(graphs: float, layers: int, passes: float = 1) -> float:
    """Give the seconds of so many passes, from those with graphs."""
    return max(graphs, passes * layers * LAYER_S.expected)
