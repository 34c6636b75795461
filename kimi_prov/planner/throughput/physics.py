"""Seconds that one token takes, as sums of what the hardware has to do for it.

Three causes are kept apart: latency (launches, synchronisation, messages), bandwidth (bytes that
have to be read) and kernel (arithmetic, other requests' prompts included). The rates come from
`parameters`; nothing here knows a measured row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.planner.throughput import hosts

if TYPE_CHECKING:
    from kimi_prov.planner.throughput.inputs import Cpu, Gpus, Machine, ModelShape, Serving
    from kimi_prov.planner.throughput.parameters import Values

# Share of the dense bf16 FLOP/s that a prompt's attention and dense layers reach: large matrices.
_DENSE_SHARE = 0.6
# Share of a link's rate that the all-reduces of a prompt reach.
_LINK_SHARE = 0.7
# Bits of weights that are multiplied as they are stored in training.
_WIDE_BITS = 16
# Layers of the models, DeepSeek's and Kimi's, in whose steps `request_us` is counted.
_REQUEST_LAYERS = 61
# Engines of 2025 were tuned for mixtures with so many experts: DeepSeek's.
_TUNED_EXPERTS = 256
# Launches in a prompt's pass take so many times as long, because it has no CUDA graph.
_NO_GRAPH_FACTOR = 3.0
# Tokens of prompts in one pass of a GPU engine, if it is not set to fewer.
_PASS_TOKENS = 8192
# Microseconds of a layer's three exchanges (queries, the sums' weights, sums) among four ranks that
# share a cache; others by the logarithm of the ranks, as for sums. Of four layers on four H200 a
# step of 64 requests took 0.70 ms more than with the whole cache on each (recording h200-x4-full):
# 175 us a layer if all of it is the layers', 11 if it is the step's and the model has 61. This is
# their geometric mean. Eight RTX PRO 6000 without direct links lose 35 us with four ranks and 42
# with eight, of one request to Kimi-K2.6 (rows of rtx6kpro). Read in vLLM 0.19.1 and 0.25.1:
# mla_attention.py, cp_lse_ag_out_rs.
_SHARED_CACHE_US = 45.0
# Block sizes of vLLM's mixture kernels, in rows. It uses the smallest block of which the rows of a
# mean expert fill less than this share.
_BLOCK_SIZES, _MIN_BLOCK_FILL = (8, 16, 32, 48, 64), 0.9
# AVX2 kernels take so many times as long as AVX-512 ones in a decode step and in a prompt, measured
# on one layer with kt-kernel.
_AVX2_DECODE, _AVX2_PREFILL = 1.5, 3.0
# The same for prompts in other engines, whose AVX-512 kernels are less of an improvement.
_AVX2_PREFILL_OTHERS = 2.0
# Engines that spread weights over sockets, whichever threads read them.
_LLAMA_ENGINES = frozenset({"llama.cpp", "ik_llama.cpp"})
# Share of the rate of the links between a processor's chiplets and its memory that reading reaches.
_LINKS_SHARE = 0.9
# Cores of a socket to which the speed of a core refers.
_USUAL_CORES = 48
# With more threads than cores (one or two more do not count) engines were 9 to 30 % slower where
# both were tried.
_MAX_THREADS_PER_CORE, _OVERSUBSCRIBED_FACTOR = 1.1, 1.1
# Tokens of a pass from which llama.cpp computes it on the GPU; for ik_llama.cpp, tokens of each
# expert.
_MIN_OFFLOADED_TOKENS = 32
# A streaming test reads about this share of the theoretical bandwidth. A measured figure is divided
# by it, so that one parameter applies to both.
STREAM_OF_THEORY = 0.75


@dataclass(frozen=True)
class Parts:
    """Seconds by cause."""

    latency: float = 0.0
    bandwidth: float = 0.0
    kernel: float = 0.0

    @property
    def total(self) -> float:
        """The seconds of all causes together."""
        return self.latency + self.bandwidth + self.kernel

    def __add__(self, other: Parts) -> Parts:
        """Add cause by cause."""
        return Parts(
            self.latency + other.latency,
            self.bandwidth + other.bandwidth,
            self.kernel + other.kernel,
        )

    def times(self, factor: float) -> Parts:
        """Scale every cause."""
        return Parts(self.latency * factor, self.bandwidth * factor, self.kernel * factor)


def estimate_decode(model: ModelShape, machine: Machine, serving: Serving, values: Values) -> Parts:
    """Estimate the seconds between two tokens of a request while `serving.running` requests run.

    Other requests' prompts delay it: in a steady state, input/output prompt tokens of every other
    request are computed for each output token.
    """
    one = estimate_step(model, machine, serving, values)
    if serving.others <= 0:
        return one
    # `others` counts prompts of one copy of attention; those of the other copies use experts too.
    together = max(serving.running, serving.data_parallel)
    prompt = estimate_prefill(model, machine, serving, values, together)
    # A GPU engine runs its passes in any case; a prompt adds only its arithmetic to them.
    added = prompt.kernel if machine.cpu is None else prompt.total
    prompts = serving.others * serving.input_tokens / serving.output_tokens
    return one + Parts(kernel=prompts * added)


def estimate_step(model: ModelShape, machine: Machine, serving: Serving, values: Values) -> Parts:
    """Estimate the seconds of a step that gives each running request a token, without prompts."""
    if machine.cpu is None:
        parts = _estimate_gpu_step(model, _require_gpus(machine), serving, values)
        engine = _find_engine_factor(_require_gpus(machine), serving, values)
        return parts.times(
            engine * _find_untuned_factor(model, _require_gpus(machine), serving, values)
        )
    return _estimate_cpu_step(model, machine, serving, values)


def estimate_verification(
    model: ModelShape, machine: Machine, serving: Serving, values: Values, guesses: int
) -> Parts:
    """Estimate by how much a step grows whose requests have `guesses` tokens more to verify.

    More tokens use more of the experts, and each one costs its arithmetic as in a prompt. The cache
    is read once for all of a request's tokens.
    """
    gpus = _require_gpus(machine)
    batch = max(1.0, serving.running / hosts.count_batches(serving))
    one, more = (
        _estimate_gpu_pass(model, gpus, serving, values, batch * tokens)
        for tokens in (1, 1 + guesses)
    )
    arithmetic = estimate_prefill(model, machine, serving, values).kernel
    return one.times(-1) + more + Parts(kernel=batch * guesses * arithmetic)


def estimate_prefill(
    model: ModelShape, machine: Machine, serving: Serving, values: Values, prompts: float = 1
) -> Parts:
    """Estimate the seconds for one token of a prompt of `serving.input_tokens` tokens.

    `prompts` of this length wait at the same time. Weights are streamed once for all prompts of a
    chunk.
    """
    if machine.cpu is None:
        parts = _estimate_gpu_prefill(model, _require_gpus(machine), serving, values, prompts)
        return parts.times(_find_engine_factor(_require_gpus(machine), serving, values))
    if machine.gpus is not None and _is_prefill_streamed(serving):
        return _estimate_streamed_prefill(model, machine.gpus, serving, values, prompts)
    return _estimate_cpu_prefill(model, machine, serving, values, prompts)


def _is_prefill_streamed(serving: Serving) -> bool:
    """Whether a prompt is computed on the GPU, layer by layer; impossible with AMX's own format."""
    start = serving.stream_prefill_from
    if serving.engine != "ktransformers" or serving.weights.amx or start is None:
        return False
    return serving.input_tokens >= start


def _require_gpus(machine: Machine) -> Gpus:
    if machine.gpus is None:
        raise ValueError("a machine needs a CPU or a GPU to serve with")
    return machine.gpus


def count_ranks(gpus: Gpus, serving: Serving) -> int:
    """Count the GPUs that share a layer by tensor parallelism."""
    return serving.tensor_parallel or gpus.count


def estimate_layer_us(model: ModelShape, gpus: Gpus, serving: Serving, values: Values) -> float:
    """Estimate the microseconds of a layer's launches, small kernels and two all-reduces.

    They do not depend on the batch. The steps of an all-reduce grow with the logarithm of the
    ranks; one GPU alone has none.
    """
    fused = gpus.vendor == "NVIDIA" and serving.weights.multiplied_bits == 4
    own = values["layer_us"] * (values["fused"] if fused and gpus.native(serving.weights) else 1.0)
    if model.kv_heads > 1:
        own *= values["grouped"]
    ranks = hosts.count_ranks_inside(gpus.count, serving)
    reduce = values["reduce_us"] * math.log2(ranks) / 3
    if gpus.nvlink_gb_s == 0:
        reduce *= values["pcie_reduce"]
    if gpus.vendor == "AMD":
        own *= values["amd_layer"]
    return own + reduce + _SHARED_CACHE_US * math.log2(serving.cache_ranks) / 2


def _find_engine_factor(gpus: Gpus, serving: Serving, values: Values) -> float:
    """Find the factor of sglang, and of 4-bit integers on AMD, whose libraries lack kernels."""
    factor = values["sglang"] if serving.engine == "sglang" else 1.0
    if gpus.vendor == "AMD" and serving.weights.integers:
        factor *= values["amd_int4"]
    return factor


def _find_untuned_factor(model: ModelShape, gpus: Gpus, serving: Serving, values: Values) -> float:
    """Find the factor of a step with untuned kernels; a prompt's large kernels need less tuning.

    It applies to old builds of an engine, with other mixtures, formats and cards than those for
    which they were made, and wherever an engine has no tuned kernels of narrow weights for the
    card; those of 16 bits need less tuning.
    """
    if serving.untuned and serving.weights.multiplied_bits < _WIDE_BITS:
        return values["untuned"]
    tuned = gpus.vendor == "NVIDIA" and model.experts <= _TUNED_EXPERTS
    if not serving.old_build or (tuned and not serving.weights.integers):
        return 1.0
    return values["untuned"]


def _estimate_gpu_step(model: ModelShape, gpus: Gpus, serving: Serving, values: Values) -> Parts:
    # Each stage has another batch at a time, and each copy of attention has its own requests.
    batch = max(1.0, serving.running / hosts.count_batches(serving))
    mine = max(1.0, batch / serving.data_parallel)
    own = 1e-6 * values["request_us"] * mine * model.layers / _REQUEST_LAYERS
    cache = mine * _count_cache_bytes(model, serving, count_ranks(gpus, serving))
    cache /= serving.cache_ranks
    return _estimate_gpu_pass(model, gpus, serving, values, batch) + Parts(
        own, cache / (gpus.bandwidth_gb_s * 1e9 * values["memory_share"])
    )


def _estimate_gpu_pass(
    model: ModelShape, gpus: Gpus, serving: Serving, values: Values, tokens: float
) -> Parts:
    """Estimate the launches of all layers and one reading of the weights that `tokens` use."""
    launches = estimate_layer_us(model, gpus, serving, values) * 1e-6 * model.layers
    weights = serving.weights
    between = Parts(
        hosts.estimate_latency(model, gpus, serving),
        hosts.estimate_transfer(model, gpus, serving, tokens),
    )
    experts = model.distinct_experts(tokens) * model.moe_layers * model.params_per_expert
    shared = experts * weights.gpu_expert / serving.data_parallel
    read = model.always_params * weights.rest + shared
    rate = count_ranks(gpus, serving) * gpus.bandwidth_gb_s * 1e9 * values["memory_share"]
    return Parts(launches, read / rate) + between


def _count_cache_bytes(model: ModelShape, serving: Serving, ranks: int) -> float:
    """Count the bytes of cache that a step of a request reads on each rank, half-way its answer."""
    tokens = serving.input_tokens + serving.output_tokens / 2
    width = model.kv_bytes_per_token * serving.kv_dtype_bytes / 2
    return tokens * width / min(ranks, model.kv_heads)


def _estimate_gpu_prefill(
    model: ModelShape, gpus: Gpus, serving: Serving, values: Values, prompts: float
) -> Parts:
    """Estimate the arithmetic, and each pass's launches and reading of nearly all weights.

    The experts of a prompt are computed on the GPUs of all copies of attention, where these have
    no prompts of their own at the time.
    """
    most = min(_PASS_TOKENS, serving.stream_chunk)
    tokens = min(serving.input_tokens, most)
    passes = math.ceil(serving.input_tokens / most) / serving.input_tokens
    one = _estimate_gpu_pass(model, gpus, serving, values, tokens)
    slower = (_NO_GRAPH_FACTOR - 1) * (one.latency - hosts.estimate_latency(model, gpus, serving))
    one_pass = Parts(one.latency + slower, one.bandwidth).times(passes)
    amd = values["amd_compute"] if gpus.vendor == "AMD" else 1.0
    # Only packed weights are multiplied as narrow numbers; attention and the rest keep their width.
    narrow, wide = (gpus.tflops_at(bits) * 1e12 * amd for bits in serving.weights.multiplied)
    share = values["expert_share"] * (values["native"] if gpus.native(serving.weights) else 1.0)
    experts = 2 * model.routed_active_params * _estimate_padding(model, tokens)
    rest = model.flops_per_token(serving.input_tokens / 2) - 2 * model.routed_active_params
    busy = min(serving.data_parallel, prompts) / serving.data_parallel
    seconds = busy * experts / (narrow * share) + rest / (wide * _DENSE_SHARE)
    ranks = count_ranks(gpus, serving)
    inside = hosts.count_ranks_inside(gpus.count, serving)
    return one_pass + Parts(kernel=seconds / ranks + _estimate_exchange(model, gpus, inside))


def _estimate_exchange(model: ModelShape, gpus: Gpus, ranks: int) -> float:
    """Estimate the seconds in which all ranks exchange a token's two bf16 sums of each layer.

    NVIDIA's switches add the values, so that each GPU sends them once; in a ring it sends them
    nearly twice.
    """
    if ranks == 1:
        return 0.0
    sent = 1.0 if gpus.vendor == "NVIDIA" and gpus.nvlink_gb_s else 2 * (ranks - 1) / ranks
    size = model.layers * 2 * model.hidden * 2 * sent
    return size / (gpus.link_gb_s * 1e9 * _LINK_SHARE)


def _estimate_padding(model: ModelShape, tokens: float) -> float:
    """Estimate the rows that an expert computes over its real rows: kernels compute whole blocks.

    On average half a block of each expert is empty. The block grows with the tokens of an expert.
    """
    touched = model.distinct_experts(tokens)
    rows = tokens * model.experts_per_token / touched
    block = next((size for size in _BLOCK_SIZES if rows < _MIN_BLOCK_FILL * size), _BLOCK_SIZES[-1])
    return 1 + block / 2 / rows


def _estimate_cpu_step(
    model: ModelShape, machine: Machine, serving: Serving, values: Values
) -> Parts:
    """Estimate the reading of the processors' experts; without GPUs, of all other weights too."""
    cpu, gpus = machine.cpu, machine.gpus
    if cpu is None:
        raise ValueError("no CPU to compute on")
    batch, fmt = serving.running, serving.weights
    experts = model.distinct_experts(batch) * model.moe_layers * model.params_per_expert
    if gpus is None:
        work = experts + model.always_params
        size = experts * fmt.cpu_expert + model.always_params * fmt.rest
        size += batch * _count_cache_bytes(model, serving, 1)
    else:
        work = experts * (1 - min(1.0, serving.gpu_experts / model.experts))
        size = work * fmt.cpu_expert
    parts = _estimate_cpu_read(cpu, serving, work, size, values)
    parts += _estimate_cpu_latency(model, machine, cpu, serving, values)
    if gpus is None:
        return parts
    ranks = count_ranks(gpus, serving) if serving.engine == "ktransformers" else 1
    read = model.always_params * fmt.rest + (experts - work) * fmt.gpu_expert
    read = read / ranks + batch * _count_cache_bytes(model, serving, ranks)
    return parts + Parts(bandwidth=read / (gpus.bandwidth_gb_s * 1e9 * values["dense_share"]))


def _estimate_cpu_latency(
    model: ModelShape, machine: Machine, cpu: Cpu, serving: Serving, values: Values
) -> Parts:
    """Estimate the time of all layers that depends neither on their weights nor on bandwidth.

    The threads of a pool synchronise after every operation (a NUMA-aware engine has a pool on each
    node). A layer with MLA has about twice as many operations. In a hybrid the pool has only the
    few operations of the experts, and each layer is handed over from the GPU.
    """
    pool = _count_threads(cpu, serving) / (cpu.sockets if _is_numa_aware(cpu, serving) else 1)
    operations = values["mla"] if model.kv_heads == 1 else 1.0
    meeting = values["thread_us"] * pool
    if machine.gpus is None:
        each = operations * (values["layer_us"] + meeting)
    else:
        hand_over = values["hybrid_layer_us"]
        hand_over *= values["llama_layer"] if serving.engine in _LLAMA_ENGINES else 1.0
        each = operations * hand_over + meeting
    return Parts(latency=model.layers * each * 1e-6)


def _estimate_cpu_read(
    cpu: Cpu, serving: Serving, work: float, size: float, values: Values
) -> Parts:
    """Estimate the seconds for `work` weights of `size` bytes; kernel and memory overlap partly."""
    if work <= 0:
        return Parts()
    kernel = work / (_count_threads(cpu, serving) * _estimate_core_gw_s(cpu, serving, values) * 1e9)
    memory = size / (_estimate_memory_gb_s(cpu, serving, values) * 1e9)
    factor = math.hypot(kernel, memory) / (kernel + memory)
    if serving.engine == "llama.cpp":
        factor *= values["llama"]
    if (serving.cpu_threads or 0) > _MAX_THREADS_PER_CORE * cpu.cores:
        factor *= _OVERSUBSCRIBED_FACTOR
    return Parts(bandwidth=memory, kernel=kernel).times(factor)


def _estimate_core_gw_s(cpu: Cpu, serving: Serving, values: Values) -> float:
    """Estimate the billion weights a second of one core's kernel."""
    rate = values["core_gw_s"] * _find_core_speed(cpu, serving, values)
    if serving.engine in _LLAMA_ENGINES:
        rate *= values["iqk"] / _find_unpacked_factor(serving, values)
    return rate / (_AVX2_DECODE if cpu.vector == "avx2" else 1.0)


def _find_core_speed(cpu: Cpu, serving: Serving, values: Values) -> float:
    """Find the speed of a core beside one of 48; more cores share the power, at lower clocks."""
    busy = _count_threads(cpu, serving) / cpu.sockets
    return float((_USUAL_CORES / busy) ** values["crowd"])


def _find_unpacked_factor(serving: Serving, values: Values) -> float:
    """Find the factor of ik_llama.cpp for weights that are not in its kernels' order."""
    return values["unpacked"] if serving.engine == "ik_llama.cpp" and not serving.repacked else 1.0


def _estimate_memory_gb_s(cpu: Cpu, serving: Serving, values: Values) -> float:
    """Estimate the memory bandwidth in GB/s that an engine's threads reach.

    A test that read more than the usual share of the channels' rate does not raise it, because an
    engine does not read as fast. On several sockets, an engine that is not NUMA-aware reads half of
    its data or more over the link between them, so that all sockets give about as much as one.
    """
    theory = cpu.bandwidth_gb_s
    if cpu.measured_gb_s:
        theory = min(theory, cpu.measured_gb_s / STREAM_OF_THEORY)
    rate = theory * values["memory_share"]
    if cpu.links_gb_s:
        rate = min(rate, cpu.links_gb_s * _LINKS_SHARE)
    if cpu.sockets == 1:
        return rate
    if _is_numa_aware(cpu, serving):
        return rate / values["second_socket"]
    return rate / (values["spread"] if cpu.numa_spread else cpu.sockets * values["blind"])


def _is_numa_aware(cpu: Cpu, serving: Serving) -> bool:
    """Whether each node's threads read from their own node's memory."""
    return cpu.numa_aware and serving.engine not in _LLAMA_ENGINES


def _count_threads(cpu: Cpu, serving: Serving) -> int:
    return min(cpu.cores, serving.cpu_threads or cpu.cores)


def _estimate_cpu_prefill(
    model: ModelShape, machine: Machine, serving: Serving, values: Values, prompts: float
) -> Parts:
    """Estimate each pass's reading of the experts that its tokens use, and its arithmetic."""
    cpu, gpus = machine.cpu, machine.gpus
    if cpu is None:
        raise ValueError("no CPU to compute on")
    batch_tokens = serving.micro_batch if serving.engine in _LLAMA_ENGINES else serving.stream_chunk
    tokens = min(prompts * serving.input_tokens, batch_tokens)
    left = 1.0 if gpus is None else 1 - min(1.0, serving.gpu_experts / model.experts)
    touched = model.distinct_experts(tokens)
    size = left * touched * model.moe_layers * model.params_per_expert * serving.weights.cpu_expert
    flops = model.flops_per_token(serving.input_tokens / 2)
    if gpus is not None and _is_prefill_offloaded(model, serving, tokens):
        copied = size / (gpus.pcie_gb_s * 1e9 * values["offload_share"])
        return Parts(
            bandwidth=copied / tokens, kernel=flops / (gpus.tflops * 1e12 * values["mmq_share"])
        )
    if gpus is None:
        size += model.always_params * serving.weights.rest
    else:
        flops = 2 * model.routed_active_params * left
    # A block of weights is unpacked once, however few tokens use it.
    rows = tokens * model.experts_per_token / touched
    flops *= 1 + values["fill_rows"] / rows
    if cpu.sockets > 1 and not _is_numa_aware(cpu, serving):
        flops *= values["blind"]
    return Parts(
        bandwidth=size / (_estimate_memory_gb_s(cpu, serving, values) * 1e9) / tokens,
        kernel=flops
        / (_count_threads(cpu, serving) * _estimate_prefill_gflops(cpu, serving, values) * 1e9),
    )


def _estimate_prefill_gflops(cpu: Cpu, serving: Serving, values: Values) -> float:
    """Find the GFLOP/s of one core where many tokens use each expert."""
    tiles = cpu.vector == "amx" and (serving.weights.amx or serving.engine in {"vllm", "sglang"})
    rate = values["amx_gflops" if tiles else "avx_gflops"]
    if serving.engine == "ik_llama.cpp":
        rate = values["iqk_gflops"] / _find_unpacked_factor(serving, values)
    elif serving.engine == "llama.cpp":
        rate = values["llama_gflops"] * (values["llama_packed"] if serving.repacked else 1.0)
    if cpu.vector != "avx2":
        return rate
    return rate / (_AVX2_PREFILL if serving.engine == "ktransformers" else _AVX2_PREFILL_OTHERS)


def _is_prefill_offloaded(model: ModelShape, serving: Serving, tokens: float) -> bool:
    """Whether llama.cpp or its fork copies a pass's experts to the GPU and computes there."""
    least: float = _MIN_OFFLOADED_TOKENS
    if serving.engine == "ik_llama.cpp":
        least *= model.experts / model.experts_per_token
    return serving.engine in _LLAMA_ENGINES and serving.offloads_prompts and tokens >= least


def _estimate_streamed_prefill(
    model: ModelShape, gpus: Gpus, serving: Serving, values: Values, prompts: float
) -> Parts:
    """Estimate kt-kernel's layer-wise prefill, which streams every layer once for each chunk.

    All experts of a layer are streamed, also those that the GPU has. They are brought into another
    layout, which more GPUs do not make faster; then each rank copies its part over its own lanes.
    """
    handed = model.experts * model.moe_layers * model.params_per_expert
    ranks = count_ranks(gpus, serving)
    copied = handed * serving.weights.gpu_expert / 1e9
    stream = copied / (ranks * gpus.pcie_gb_s * values["stream_share"])
    tokens = prompts * serving.input_tokens
    chunks = math.ceil(tokens / serving.stream_chunk)
    once = stream + handed / (values["layout_gw_s"] * 1e9)
    per_token = chunks * once / tokens
    flops = model.flops_per_token(serving.input_tokens / 2)
    rate = gpus.tflops_at(serving.weights.multiplied_bits) * 1e12 * values["gpu_share"]
    compute = flops / (ranks * rate)
    return Parts(bandwidth=per_token, kernel=compute)
