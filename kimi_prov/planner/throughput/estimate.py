"""Speed of a model on a machine, as ranges: how the planner calls the estimator.

decode and prefill: kimi_prov.planner.throughput.physics with coefficients fitted on measured rows.
load: bytes divided by the slower rate of disk and engine, plus the engine's time before and after.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kimi_prov.planner.throughput import first_token, hosts, physics, stored, without_graphs
from kimi_prov.planner.throughput.calibrate import choose_model
from kimi_prov.planner.throughput.cases import NOISE, Case, Quantity, find_kind
from kimi_prov.planner.throughput.inputs import Basis, Estimate, Range

if TYPE_CHECKING:
    from kimi_prov.planner.throughput.inputs import Gpus, Machine, ModelShape, Serving

# GB/s at which the worker of a GPU loads weights that are in memory, with one thread. It is the
# geometric mean of 13 loads of INT4 without stages, 1.09 to 2.11, by vLLM 0.25.1 on two and four
# H200 of virtual machines (tests/data/recordings/gpu-reports, h200-x*-full*), and of reference
# 004's load: 1.80, all 61 layers on 8x H100.
_WORKER_GB_S = 1.53
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
    """Estimate the seconds from the engine's start to the first token, weights on this machine.

    They are not scored, because too few timings are published.
    """
    taken = estimate_weights_load(model, machine, serving)
    rest = _START_S.get(serving.engine, _START_OTHER_S)
    return estimate_start(model, serving, machine.disk_gb_s, taken, rest, _LOAD_SPREAD)


def estimate_start(
    model: ModelShape,
    serving: Serving,
    disk_gb_s: float | None,
    taken_s: float,
    rest_s: float,
    spread: float,
) -> Range:
    """Estimate the seconds of a start in which the engine loads weights while a disk reads them.

    The longer of both times counts; `rest_s` is the time before and after. Each time may be longer
    or shorter by the factor `spread`, that of a disk without a figure by 2.5.
    """
    read, disk = 0.0, spread
    if not serving.weights_in_memory:
        read = count_checkpoint_gb(model, serving) / (disk_gb_s or DISK_GB_S)
        disk = spread if disk_gb_s else _UNKNOWN_DISK_SPREAD
    return Range(
        max(taken_s / spread, read / disk) + rest_s / spread,
        max(taken_s, read) + rest_s,
        max(taken_s * spread, read * disk) + rest_s * spread,
    )


def estimate_weights_load(model: ModelShape, machine: Machine, serving: Serving) -> float:
    """Estimate the seconds in which an engine loads weights that are in memory."""
    if machine.gpus and machine.cpu is None:
        return count_worker_gb(model, machine.gpus, serving) / _WORKER_GB_S
    return count_checkpoint_gb(model, serving) / _KT_TAKES_IN_GB_S


def count_worker_gb(model: ModelShape, gpus: Gpus, serving: Serving) -> float:
    """Count the GB that the worker of one GPU reads when it loads its stage of a model.

    It reads all weights but the routed experts, and of these the ones that its GPU gets, where they
    stay whole. Of slices it reads more than it keeps. Packed integers are transposed before they
    are cut, all of them by every worker (vLLM 0.25.1 for Marlin, RoutedExperts.weight_loader; other
    kernels are counted in the same way). Of other formats the down projection is cut across its
    rows, so that all of its pages are read (found in the code, not timed).
    """
    ranks = physics.count_ranks(gpus, serving) * serving.data_parallel
    share = 1.0 if serving.weights.integers else (1 + 2 / ranks) / 3
    if serving.experts_whole:
        share = 1 / ranks
    routed = _count_routed_weights(model) * serving.weights.gpu_expert / 1e9
    rest = count_checkpoint_gb(model, serving) - routed
    return (rest + share * routed) / serving.stages


def count_checkpoint_gb(model: ModelShape, serving: Serving) -> float:
    """Count the GB that the engine reads when it starts."""
    routed = _count_routed_weights(model)
    rest = (model.total_params - routed) * serving.weights.rest
    return (routed * serving.weights.gpu_expert + rest) / 1e9


def _count_routed_weights(model: ModelShape) -> float:
    return model.moe_layers * model.experts * model.params_per_expert


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
