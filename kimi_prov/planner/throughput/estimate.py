"""Speed of a model on a machine, as ranges: how the planner calls the estimator.

decode and prefill: kimi_prov.planner.throughput.physics with coefficients fitted on measured rows.
load: bytes divided by the slower rate of disk and engine (see loads.py), plus the engine's time
before and after.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kimi_prov.planner.throughput import (
    first_token,
    hosts,
    loads,
    physics,
    stored,
    without_graphs,
)
from kimi_prov.planner.throughput.calibrate import choose_model
from kimi_prov.planner.throughput.cases import NOISE, Case, Quantity, find_kind
from kimi_prov.planner.throughput.inputs import Basis, Estimate, Range

if TYPE_CHECKING:
    from kimi_prov.planner.throughput.inputs import Machine, ModelShape, Serving

# kt-kernel: 2.2 to 4.6 s a layer from tmpfs.
_KT_TAKES_IN_GB_S = 3.5
# Seconds of imports, workers, compilation and graphs: vLLM 118 to 154 s with dummy weights.
_START_S = {"vllm": 130.0, "sglang": 100.0, "ktransformers": 100.0}
_START_OTHER_S = 20.0
# Assumed for a disk without a figure: an NVMe drive or a good network volume.
DISK_GB_S = 2.0
# How far a step may be off where ranks share a cache: of one request, 8x H100, whether what was
# measured is all the step's or all the layers' (physics._SHARED_CACHE_US).
_SHARED_CACHE_OFF = 1.6
_LOAD_SPREAD, _UNKNOWN_DISK_SPREAD = 1.6, 2.5


def estimate_speed(model: ModelShape, machine: Machine, serving: Serving) -> Estimate:
    """Estimate speeds in tokens a second, times to load and to the first token in seconds.

    A `machine` whose GPUs hold all weights has no `cpu`; a hybrid has both; a machine without GPUs
    has only `cpu`. The inputs raise ValueError for impossible values.
    """
    decode = _estimate_range(model, machine, serving, "decode")
    prefill = _estimate_range(model, machine, serving, "prefill")
    models = stored.load_models()
    values = models["gpu" if machine.cpu is None else "cpu"].fit.values
    basis = name_basis(physics.estimate_decode(model, machine, serving, values))
    prompt = physics.estimate_prefill(model, machine, serving, values, serving.running)
    prompt_s = serving.input_tokens * prompt.total
    step = physics.estimate_step(model, machine, serving, values).total
    if serving.without_graphs and machine.cpu is None:
        graphs, decode = decode, without_graphs.slow_down(decode, model.layers)
        passes = math.ceil(serving.input_tokens / serving.stream_chunk)
        prefill = without_graphs.slow_down(prefill, model.layers, serving.input_tokens, passes)
        prompt_s = without_graphs.estimate_seconds(prompt_s, model.layers, passes)
        step = without_graphs.estimate_seconds(step, model.layers)
        basis = "latency-bound" if decode.expected < graphs.expected else basis
    queue = first_token.Queue(prompt=prompt_s, step=step)
    return Estimate(
        decode_tok_s=decode,
        aggregate_tok_s=scale_range(decode, serving.running),
        prefill_tok_s=prefill,
        ttft_s=first_token.estimate_first_token(serving, prefill, queue),
        single_ttft_s=first_token.estimate_first_token(serving, prefill),
        load_s=estimate_load(model, machine, serving),
        basis=basis,
        kind=find_kind(machine, serving.concurrency),
    )


def estimate_load(model: ModelShape, machine: Machine, serving: Serving) -> Range:
    """Estimate the seconds from the engine's start to the first token, weights on this machine."""
    taken = estimate_weights_load(model, machine, serving)
    rest = _START_S.get(serving.engine, _START_OTHER_S)
    return estimate_start(model, serving, machine.disk_gb_s, taken, rest, _LOAD_SPREAD)


def estimate_start(
    model: ModelShape,
    serving: Serving,
    disk_gb_s: float | None,
    taken: Range,
    rest_s: float,
    spread: float,
) -> Range:
    """Estimate the seconds of a start in which the engine loads weights while a disk reads them.

    The longer of both times counts; `rest_s` is the time before and after. It and the disk's may be
    longer or shorter by the factor `spread`, that of a disk without a figure by 2.5.
    """
    read, disk = 0.0, spread
    if not serving.weights_in_memory:
        read = loads.count_checkpoint_gb(model, serving) / (disk_gb_s or DISK_GB_S)
        disk = spread if disk_gb_s else _UNKNOWN_DISK_SPREAD
    return Range(
        max(taken.low, read / disk) + rest_s / spread,
        max(taken.expected, read) + rest_s,
        max(taken.high, read * disk) + rest_s * spread,
    )


def estimate_weights_load(model: ModelShape, machine: Machine, serving: Serving) -> Range:
    """Estimate the seconds in which an engine loads weights that are in memory."""
    if machine.gpus and machine.cpu is None:
        return loads.estimate_into_gpus(model, machine.gpus, serving)
    seconds = loads.count_checkpoint_gb(model, serving) / _KT_TAKES_IN_GB_S
    return widen_seconds(seconds, _LOAD_SPREAD)


def widen_seconds(seconds: float, factor: float) -> Range:
    """Make the range of a time that may be longer or shorter by a factor."""
    return Range(seconds / factor, seconds, seconds * factor)


def _estimate_range(
    model: ModelShape, machine: Machine, serving: Serving, quantity: Quantity
) -> Range:
    case = Case(
        id="",
        author="",
        group="",
        kind=find_kind(machine, serving.concurrency),
        quantity=quantity,
        model=model,
        machine=machine,
        serving=serving,
        value=math.nan,
        noise=NOISE["high"],
    )
    prediction = choose_model(case, stored.load_models()).predict(case)
    more = hosts.estimate_spread(machine.gpus, serving, quantity)
    if serving.cache_ranks > 1 and quantity == "decode":
        more = math.hypot(more, math.log(_SHARED_CACHE_OFF))
    return hosts.widen_range(Range(prediction.low, prediction.expected, prediction.high), more)


def scale_range(span: Range, factor: float) -> Range:
    """Multiply a range by a factor."""
    return Range(span.low * factor, span.expected * factor, span.high * factor)


def name_basis(parts: physics.Parts) -> Basis:
    """Name the cause that takes most of the time."""
    named: dict[Basis, float] = {
        "latency-bound": parts.latency,
        "bandwidth-bound": parts.bandwidth,
        "kernel-bound": parts.kernel,
    }
    return max(named, key=lambda cause: named[cause])
