"""Seconds that one token takes, as sums of what the hardware has to do for it.

Three causes are kept apart: latency (launches, synchronisation, messages), bandwidth (bytes that
have to be read) and kernel (arithmetic, other requests' prompts included). The rates come from
`parameters`; nothing here knows a measured row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.planner.throughput.inputs import Cpu, Gpus, Machine, ModelShape, Serving
    from kimi_prov.planner.throughput.parameters import Values

# Share of a GPU's bandwidth that the dense part of a hybrid reaches: small matrices, one stream.
_HYBRID_GPU_SHARE = 0.6
# Tokens of prompts that one pass of a GPU engine takes in.
_PASS = 8192
# Rows of a block of vLLM's mixture kernels: the least that a mean expert fills to this share.
_BLOCKS, _FULL = (8, 16, 32, 48, 64), 0.9
# AVX2 kernels against AVX-512 ones, measured on one layer with kt-kernel: a decode step, a prompt.
_AVX2_DECODE, _AVX2_PREFILL = 1.5, 3.0
# Weights spread over two sockets by an engine that does not know of nodes.
_NUMA_BLIND = 1.4
# Of the theoretical bandwidth a streaming test reads about this share: a measured figure is
# scaled by it, so that one parameter serves both.
STREAM_OF_THEORY = 0.75


@dataclass(frozen=True)
class Parts:
    """Seconds by cause."""

    latency: float = 0.0
    bandwidth: float = 0.0
    kernel: float = 0.0

    @property
    def total(self) -> float:
        """All causes together, in seconds."""
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


def decode(model: ModelShape, machine: Machine, serving: Serving, values: Values) -> Parts:
    """Seconds between two tokens of one request while `serving.running` requests run.

    Other requests' prompts delay it: in a steady state each output token comes with
    input/output prompt tokens of every other request.
    """
    one = step(model, machine, serving, values)
    if serving.others <= 0:
        return one
    prompt = prefill(model, machine, serving, values, serving.running)
    # A GPU engine's passes are under way anyway: a prompt adds its arithmetic to them.
    added = prompt.kernel if machine.cpu is None else prompt.total
    prompts = serving.others * serving.input_tokens / serving.output_tokens
    return one + Parts(kernel=prompts * added)


def step(model: ModelShape, machine: Machine, serving: Serving, values: Values) -> Parts:
    """Seconds of a step that gives each running request a token, no prompt being in the way."""
    if machine.cpu is None:
        parts = _gpu_step(model, _gpus(machine), serving, values)
        return parts.times(_untuned(model, serving, values))
    return _cpu_step(model, machine, serving, values)


def prefill(
    model: ModelShape, machine: Machine, serving: Serving, values: Values, prompts: float = 1
) -> Parts:
    """Seconds for one token of a prompt of `serving.input_tokens` tokens.

    `prompts` of that length wait at the same time: what is streamed for one serves all in a chunk.
    """
    if machine.cpu is None:
        parts = _gpu_prefill(model, _gpus(machine), serving, values)
        return parts.times(_untuned(model, serving, values))
    if machine.gpus is not None and _streams(serving):
        return _streamed_prefill(model, machine.gpus, serving, values, prompts)
    return _cpu_prefill(model, machine, machine.cpu, serving, values)


def _streams(serving: Serving) -> bool:
    """Whether a prompt is computed on the GPU, layer by layer; AMX's own format cannot be."""
    start = serving.stream_prefill_from
    if serving.engine != "ktransformers" or serving.weights.amx or start is None:
        return False
    return serving.input_tokens >= start


def _gpus(machine: Machine) -> Gpus:
    if machine.gpus is None:
        raise ValueError("a machine needs a CPU or a GPU to serve with")
    return machine.gpus


def _ranks(gpus: Gpus, serving: Serving) -> int:
    return serving.tensor_parallel or gpus.count


def _platform(gpus: Gpus, serving: Serving, values: Values) -> float:
    """How much longer small work takes than on NVIDIA's machines with NVLink."""
    factor = 1.0
    if gpus.vendor == "AMD":
        factor *= values["amd_layer"]
    elif gpus.nvlink_gb_s == 0 and _ranks(gpus, serving) > 1:
        factor *= values["pcie_layer"]
    return factor


def _untuned(model: ModelShape, serving: Serving, values: Values) -> float:
    """Factor of sglang: its kernels are tuned for DeepSeek's shapes, others run slower."""
    if serving.engine != "sglang":
        return 1.0
    tuned = model.name.lower().startswith("deepseek")
    return values["sglang"] * (1.0 if tuned else values["untuned"])


def _gpu_step(model: ModelShape, gpus: Gpus, serving: Serving, values: Values) -> Parts:
    # Stages work on batches of their own in turn; copies of attention on requests of their own.
    batch = max(1.0, serving.running / serving.stages)
    mine = max(1.0, batch / serving.data_parallel)
    own = _platform(gpus, serving, values) * 1e-6 * values["request_us"] * mine
    cache = mine * _cache_bytes(model, serving, _ranks(gpus, serving))
    return _gpu_pass(model, gpus, serving, values, batch) + Parts(
        own, cache / (gpus.bandwidth_gb_s * 1e9 * values["memory_share"])
    )


def _gpu_pass(
    model: ModelShape, gpus: Gpus, serving: Serving, values: Values, tokens: float
) -> Parts:
    """Count launches of all layers and one reading of the weights that so many tokens meet."""
    launches = _platform(gpus, serving, values) * 1e-6 * values["layer_us"] * model.layers
    weights = serving.weights
    experts = model.distinct_experts(tokens) * model.moe_layers * model.params_per_expert
    shared = experts * weights.gpu_expert / serving.data_parallel
    read = model.always_params * weights.rest + shared
    rate = _ranks(gpus, serving) * gpus.bandwidth_gb_s * 1e9 * values["memory_share"]
    return Parts(launches, read / rate)


def _cache_bytes(model: ModelShape, serving: Serving, ranks: int) -> float:
    """Cache that one request's step reads on each rank, half of its answer being there."""
    tokens = serving.input_tokens + serving.output_tokens / 2
    width = model.kv_bytes_per_token * serving.kv_dtype_bytes / 2
    return tokens * width / min(ranks, model.kv_heads)


def _gpu_prefill(model: ModelShape, gpus: Gpus, serving: Serving, values: Values) -> Parts:
    """Arithmetic, and for each pass its launches and one reading of nearly all weights."""
    tokens = min(serving.input_tokens, _PASS)
    passes = math.ceil(serving.input_tokens / _PASS) / serving.input_tokens
    one_pass = _gpu_pass(model, gpus, serving, values, tokens).times(passes)
    share = values["compute_share"] * (values["amd_compute"] if gpus.vendor == "AMD" else 1.0)
    flops = model.flops_per_token(serving.input_tokens / 2)
    flops += 2 * model.routed_active_params * (_padding(model, tokens) - 1)
    arithmetic = flops / (_ranks(gpus, serving) * gpus.tflops_of(serving.weights) * 1e12 * share)
    return one_pass + Parts(kernel=arithmetic)


def _padding(model: ModelShape, tokens: float) -> float:
    """How many times its rows an expert computes: kernels take whole blocks of tokens.

    Half a block of each expert is empty on average; the block grows with the tokens of an expert.
    """
    touched = model.distinct_experts(tokens)
    rows = tokens * model.experts_per_token / touched
    block = next((size for size in _BLOCKS if rows < _FULL * size), _BLOCKS[-1])
    return 1 + block / 2 / rows


def _cpu_step(model: ModelShape, machine: Machine, serving: Serving, values: Values) -> Parts:
    cpu, gpus = machine.cpu, machine.gpus
    if cpu is None:
        raise ValueError("no CPU to compute on")
    batch, fmt = serving.running, serving.weights
    experts = model.distinct_experts(batch) * model.moe_layers * model.params_per_expert
    if gpus is None:
        work = experts + model.always_params
        size = experts * fmt.cpu_expert + model.always_params * fmt.rest
        size += batch * _cache_bytes(model, serving, 1)
        return _cpu_read(cpu, serving, work, size, values) + Parts(
            latency=values["layer_us"] * 1e-6 * model.layers
        )
    on_cpu = 1 - min(1.0, serving.gpu_experts / model.experts)
    parts = _cpu_read(cpu, serving, experts * on_cpu, experts * on_cpu * fmt.cpu_expert, values)
    ranks = _ranks(gpus, serving) if serving.engine == "ktransformers" else 1
    read = model.always_params * fmt.rest + experts * (1 - on_cpu) * fmt.gpu_expert
    read = read / ranks + batch * _cache_bytes(model, serving, ranks)
    dense = read / (gpus.bandwidth_gb_s * 1e9 * _HYBRID_GPU_SHARE)
    return parts + Parts(values["hybrid_layer_us"] * 1e-6 * model.layers, dense)


def _cpu_read(cpu: Cpu, serving: Serving, work: float, size: float, values: Values) -> Parts:
    """Seconds to take in `work` weights of `size` bytes: kernel and memory overlap in part."""
    kernel = work / (_threads(cpu, serving) * values["core_gw_s"] * 1e9)
    if cpu.vector == "avx2":
        kernel *= _AVX2_DECODE
    theory = cpu.measured_gb_s / STREAM_OF_THEORY if cpu.measured_gb_s else cpu.bandwidth_gb_s
    memory = size / (theory * 1e9 * values["memory_share"])
    factor = _engine_factor(serving, values)
    if cpu.sockets > 1:
        factor *= values["second_socket"] * (1.0 if cpu.numa_aware else _NUMA_BLIND)
    both = math.hypot(kernel, memory) * factor
    return Parts(
        bandwidth=both * memory / (kernel + memory), kernel=both * kernel / (kernel + memory)
    )


def _threads(cpu: Cpu, serving: Serving) -> int:
    return min(cpu.cores, serving.cpu_threads or cpu.cores)


def _engine_factor(serving: Serving, values: Values) -> float:
    if serving.engine == "llama.cpp":
        return values["llama"]
    return values["legacy"] if serving.engine == "ktransformers-legacy" else 1.0


def _cpu_prefill(
    model: ModelShape, machine: Machine, cpu: Cpu, serving: Serving, values: Values
) -> Parts:
    on_cpu = model.active_params
    if machine.gpus is not None:
        on_cpu = model.routed_active_params * (1 - min(1, serving.gpu_experts / model.experts))
    tiles = cpu.vector == "amx" and (serving.weights.amx or serving.engine in {"vllm", "sglang"})
    rate = values["amx_gflops"] if tiles else values["avx_gflops"]
    if cpu.vector == "avx2":
        rate /= _AVX2_PREFILL
    seconds = 2 * on_cpu / (_threads(cpu, serving) * rate * 1e9)
    if serving.engine == "llama.cpp":
        seconds *= values["llama_prefill"]
    return Parts(kernel=seconds)


def _streamed_prefill(
    model: ModelShape, gpus: Gpus, serving: Serving, values: Values, prompts: float
) -> Parts:
    """kt-kernel's layer-wise prefill: each chunk of the prompt sees every layer streamed once.

    All experts of a layer are handed over, those on the GPU too; while one is copied, the CPU lays
    the next one out (two slots in turn), and all ranks meet after each.
    """
    handed = model.experts * model.moe_layers
    size = handed * model.params_per_expert * serving.weights.gpu_expert / 1e9
    ranks = _ranks(gpus, serving)
    stream = size / (ranks * gpus.pcie_gb_s * values["stream_share"])
    tokens = prompts * serving.input_tokens
    chunks = math.ceil(tokens / serving.stream_chunk)
    meet = handed * values["hand_over_us"] * 1e-6
    once = math.hypot(size / values["prepare_gb_s"], stream) + meet
    per_token = chunks * once / tokens
    flops = model.flops_per_token(serving.input_tokens / 2)
    compute = flops / (ranks * gpus.tflops * 1e12 * values["gpu_share"])
    return Parts(bandwidth=per_token, kernel=compute)
