"""The inputs and the results of a speed estimate; names show the units."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

Basis = Literal["latency-bound", "bandwidth-bound", "kernel-bound"]
LinkKind = Literal["infiniband", "roce", "ethernet"]
Part = Literal["memory", "gpu_memory", "copy", "matrix", "disk"]
EngineFamily = Literal[
    "vllm", "sglang", "ktransformers", "ktransformers-legacy", "llama.cpp", "ik_llama.cpp"
]


@dataclass(frozen=True)
class ModelShape:
    """The dimensions of a model that speed depends on.

    `always_params`: weights that every token reads, whatever the router chooses (attention, shared
    experts, dense layers, head). `kv_bytes_per_token` is for one rank at 16 bit; `kv_heads` is the
    number of ranks that can share it (1 for MLA, of which every rank holds all). `attention_width`
    is heads x (key + value width), for the cost of attention over a long prompt. `hidden` is the
    width of the rows between layers.
    """

    name: str
    layers: int
    moe_layers: int
    experts: int
    experts_per_token: int
    params_per_expert: float
    always_params: float
    total_params: float
    kv_bytes_per_token: float
    kv_heads: int = 1
    attention_width: float = 0.0
    hidden: int = 7168

    @property
    def routed_active_params(self) -> float:
        """The weights of the experts that one token is routed to."""
        return self.moe_layers * self.experts_per_token * self.params_per_expert

    @property
    def active_params(self) -> float:
        """The weights that one token uses, with the head and without the embedding."""
        return self.always_params + self.routed_active_params

    def flops_per_token(self, context: float) -> float:
        """Count the operations of one token that attends over `context` tokens before it."""
        return 2 * self.active_params + 2 * self.layers * self.attention_width * context

    def distinct_experts(self, tokens: float) -> float:
        """Count the experts of a layer that a batch uses with even routing: E(1-(1-k/E)^B)."""
        missed: float = (1 - self.experts_per_token / self.experts) ** tokens
        return self.experts * (1 - missed)


@dataclass(frozen=True)
class WeightFormat:
    """Bytes of one weight, scales included: experts on the GPU, on the CPU, and all other weights.

    `amx`: the CPU kernels of this format use AMX tiles where the processor has them.
    `multiplied_bits`: bits of the numbers that a GPU's matrix units multiply, if they can: for
    experts, and for other weights unless `rest_bits` is set. `integers`: the weights are packed
    integers, not short floating point numbers.
    """

    gpu_expert: float
    cpu_expert: float
    rest: float
    amx: bool = False
    multiplied_bits: int = 16
    rest_bits: int = 16
    integers: bool = False

    @property
    def multiplied(self) -> tuple[int, int]:
        """The bits of the numbers that are multiplied: for experts, and for other weights."""
        return self.multiplied_bits, self.rest_bits


@dataclass(frozen=True)
class Cpu:
    """All sockets that are used together.

    `bandwidth_gb_s` is theoretical (channels x MT/s x 8). `measured_gb_s` is the result of a
    streaming test on the machine, if there was one. `links_gb_s` is the rate of the links between
    cores and memory, where it may be lower. `vector`: the widest of avx2, avx512, amx, arm.
    `numa_aware`: the engine, if it can, keeps the data of a node's threads in that node's memory.
    `numa_spread`: one that cannot is told to spread memory and threads evenly over the nodes.
    """

    sockets: int
    cores: int
    bandwidth_gb_s: float
    measured_gb_s: float | None = None
    vector: Literal["avx2", "avx512", "amx", "arm"] = "avx512"
    numa_aware: bool = True
    numa_spread: bool = False
    links_gb_s: float | None = None

    def __post_init__(self) -> None:
        _check_positive(self, "sockets", "cores", "bandwidth_gb_s", "measured_gb_s", "links_gb_s")


@dataclass(frozen=True)
class Gpus:
    """Equal GPUs of one host. `tflops_bf16` is dense; None derives it from the bandwidth.

    `nvlink_gb_s` is for both directions of one GPU's direct links, 0 where there are none.
    `narrowest_bits`: the narrowest numbers that its matrix units multiply.
    """

    name: str
    count: int
    bandwidth_gb_s: float
    memory_gb: float
    vendor: Literal["NVIDIA", "AMD"] = "NVIDIA"
    nvlink_gb_s: float = 0.0
    tflops_bf16: float | None = None
    pcie_gb_s: float = 25.0
    narrowest_bits: int = 16

    def __post_init__(self) -> None:
        _check_positive(self, "count", "bandwidth_gb_s", "tflops_bf16", "pcie_gb_s")

    @property
    def link_gb_s(self) -> float:
        """The GB/s that one GPU can send to the others."""
        return self.nvlink_gb_s / 2 or self.pcie_gb_s

    @property
    def tflops(self) -> float:
        """The dense bf16 TFLOP/s of one GPU; without a figure, 0.25 for each GB/s (H100: 0.295)."""
        return self.tflops_bf16 or 0.25 * self.bandwidth_gb_s

    def tflops_at(self, bits: int) -> float:
        """Return the TFLOP/s with numbers of so many bits, doubled for half the bits if it can."""
        return self.tflops * (16 / bits if bits >= self.narrowest_bits else 1.0)

    def native(self, weights: WeightFormat) -> bool:
        """Whether its matrix units multiply experts in their packed form, without widening them."""
        return self.narrowest_bits <= weights.multiplied_bits < 16


@dataclass(frozen=True)
class Link:
    """The link between hosts: `gb_s` is sent by one host over all its ports, in one direction."""

    kind: LinkKind = "ethernet"
    gb_s: float = 1.25

    def __post_init__(self) -> None:
        _check_positive(self, "gb_s")


@dataclass(frozen=True)
class Machine:
    """The machine that serves: processors, GPUs, or both. `disk_gb_s`: sequential read.

    `measured`: the parts whose speed was measured on this machine itself.
    """

    cpu: Cpu | None = None
    gpus: Gpus | None = None
    disk_gb_s: float | None = None
    measured: frozenset[Part] = frozenset()

    def __post_init__(self) -> None:
        _check_positive(self, "disk_gb_s")
        if self.cpu is None and self.gpus is None:
            raise ValueError("a machine needs a CPU or a GPU to serve with")


@dataclass(frozen=True)
class Serving:
    """How the model is served.

    `input_tokens` and `output_tokens` are those of a typical request, not the largest one allowed.
    `tensor_parallel` None means all GPUs. `data_parallel` copies of attention share the experts.
    `stages` of layers follow one another. `cache_ranks` share the cache of each conversation
    (decode context parallelism). `experts_whole`: a GPU has whole experts, not slices of all.
    `gpu_experts` (hybrid) counts the experts of each layer that are on GPUs. `cpu_threads` None
    means all cores. `concurrency` is the number of requests that users send at once;
    `kv_tokens_max` and `requests_max` limit how many of them run. `weights_in_memory`: the files
    are in the page cache or on a RAM disk when the engine starts. `stream_prefill_from`: a prompt
    of so many tokens or more is computed layer by layer on the GPU (ktransformers); None: never.
    `stream_chunk`: the most tokens of prompts in one pass. `old_build`: an engine of 2025, whose
    kernels were tuned only for DeepSeek's models. `untuned`: an engine without tuned kernels of
    this mixture for the card. llama.cpp and ik_llama.cpp compute a prompt in passes of
    `micro_batch` tokens; `repacked`: their weights are in memory in the order of the CPU's kernels;
    `offloads_prompts`: they copy experts to a GPU where a pass is large enough.
    `without_graphs`: the processor starts each kernel of the GPUs separately. `hosts` serve one
    model together over `link`; ranks, copies and stages count over all of them. `version` of the
    engine and `load_format` choose the way in which it loads weights; None: the default version.
    """

    engine: EngineFamily
    weights: WeightFormat
    concurrency: int = 1
    input_tokens: float = 8192
    output_tokens: float = 1024
    tensor_parallel: int | None = None
    data_parallel: int = 1
    stages: int = 1
    cache_ranks: int = 1
    experts_whole: bool = False
    kv_dtype_bytes: float = 2
    kv_tokens_max: float | None = None
    requests_max: int | None = None
    gpu_experts: int = 0
    cpu_threads: int | None = None
    weights_in_memory: bool = False
    stream_prefill_from: int | None = 400
    stream_chunk: int = 16384
    old_build: bool = False
    untuned: bool = False
    micro_batch: int = 512
    repacked: bool = False
    offloads_prompts: bool = True
    without_graphs: bool = False
    hosts: int = 1
    link: Link = field(default_factory=Link)
    version: str | None = None
    load_format: str = "auto"

    def __post_init__(self) -> None:
        _check_positive(self, "concurrency", "input_tokens", "output_tokens", "tensor_parallel")
        _check_positive(self, "kv_dtype_bytes", "cpu_threads", "data_parallel", "stages", "hosts")
        _check_positive(self, "cache_ranks", "stream_chunk")

    @property
    def running(self) -> float:
        """The requests that run at once: all, or as many as cache and engine allow."""
        most = [float(self.concurrency)]
        if self.kv_tokens_max is not None:
            most.append(self.kv_tokens_max / max(1.0, self.input_tokens + self.output_tokens))
        if self.requests_max is not None:
            most.append(self.requests_max)
        return max(1.0, min(most))

    @property
    def alone(self) -> Serving:
        """The same with one request."""
        return replace(self, concurrency=1)

    @property
    def others(self) -> float:
        """The other running requests whose prompts share the passes of a request."""
        return (self.running - 1) / (self.data_parallel * self.stages)


@dataclass(frozen=True)
class Range:
    """A value with its expected range; `make score` says how often ranges hold."""

    low: float
    expected: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """Speeds in tokens a second, `load_s` in seconds.

    `decode_tok_s` is for one request at the requested concurrency, `aggregate_tok_s` for all that
    run, `prefill_tok_s` for one prompt alone. `ttft_s` is the time from a request to its first
    token while `Serving.running` requests come and go (a request without room in the cache waits
    longer), `single_ttft_s` that of a single request. `kind` names the class whose errors apply.
    """

    decode_tok_s: Range
    aggregate_tok_s: Range
    prefill_tok_s: Range
    ttft_s: Range
    single_ttft_s: Range
    load_s: Range
    basis: Basis
    kind: Literal["cpu", "hybrid", "gpu-single", "gpu-batched"]


def _check_positive(record: object, *names: str) -> None:
    for name in names:
        value = getattr(record, name)
        if value is not None and value <= 0:
            raise ValueError(f"{type(record).__name__}.{name} is {value}, wanted above 0")
