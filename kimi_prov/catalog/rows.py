"""What each row of the catalogue holds. Units stand in the names; None is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Confidence = Literal["high", "medium", "low"]
Vector = Literal["avx2", "avx512", "amx", "arm"]
Verdict = Literal["accepted", "deprecated", "rejected", "fails"]


@dataclass(frozen=True)
class Architecture:
    """Dimensions of a model with routed experts.

    `attention`: "mla" keeps one latent of kv_lora_rank + qk_rope_head_dim for all heads, on every
    rank; "gqa" keeps kv_heads x 2 x head_dim, which ranks share. `kv_layers` counts the layers
    that keep such a cache where not all do; `indexer_layers` those that keep
    `indexer_bytes_per_token` beside it; `kv_fp8_bytes_per_layer` is the size of a token and layer
    in an engine's own 8-bit layout. `expert_hidden`: width that experts see where it is not
    `hidden`. `params_total` is given where counting the dimensions does not meet it.
    """

    class_name: str
    layers: int
    dense_layers: int
    hidden: int
    dense_width: int
    experts: int
    experts_per_token: int
    shared_experts: int
    expert_width: int
    heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    vocab: int
    vision_params: int
    attention: Literal["mla", "gqa"] = "mla"
    kv_heads: int = 0
    head_dim: int = 0
    kv_layers: int | None = None
    indexer_layers: int = 0
    indexer_bytes_per_token: int = 0
    kv_fp8_bytes_per_layer: int | None = None
    expert_hidden: int | None = None
    params_total: int | None = None
    params_active: int | None = None


@dataclass(frozen=True)
class Published:
    """A checkpoint of a model in another format than its own."""

    format: str
    repo: str
    source: str
    confidence: Confidence
    size_bytes: int | None = None
    kv_dtype: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Gguf:
    """A GGUF file of a model: what llama.cpp and ik_llama.cpp serve."""

    kind: str
    size_bytes: int
    source: str


@dataclass(frozen=True)
class EngineVersion:
    """Versions of an engine that serve a model: the least that was seen to, the one recommended."""

    engine: str
    least: str
    recommended: str
    source: str


@dataclass(frozen=True)
class Model:
    """A model that can be asked for. `other_bytes`: tokenizer and other small files.

    `formats` names what the model is published in, its own first. `cross_check`: here to hold the
    arithmetic against other observations, not to be provisioned.
    """

    name: str
    architecture: Architecture
    context: int
    native_format: str
    other_bytes: int
    source: str
    confidence: Confidence
    repo: str | None = None
    revision: str | None = None
    released: str | None = None
    shards: int | None = None
    aliases: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
    gguf: tuple[Gguf, ...] = ()
    engine_versions: tuple[EngineVersion, ...] = ()
    random_weights: bool = False
    cross_check: bool = False
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    trust_remote_code: bool = False
    note: str | None = None

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats in which somebody publishes it, its own first."""
        return tuple(dict.fromkeys([self.native_format, *(row.format for row in self.published)]))

    def versions(self, engine: str) -> EngineVersion | None:
        """Versions of an engine that serve it; None where nothing is known."""
        return next((row for row in self.engine_versions if row.engine == engine), None)


@dataclass(frozen=True)
class Draft:
    """A small model that guesses tokens for a large one to verify (speculative decoding).

    `models` names whom it was trained for. `kv_values`: values of the cache for one token;
    `kv_split`: ranks share them out, where an MLA draft keeps them whole on every rank. `least`:
    the first version of vLLM that loads it.
    """

    name: str
    repo: str
    models: tuple[str, ...]
    method: str
    size_bytes: int
    kv_values: int
    least: str
    source: str
    confidence: Confidence
    kv_split: bool = False
    note: str | None = None


@dataclass(frozen=True)
class Format:
    """A weight format, in bytes of one weight with its scales.

    `kind`: "checkpoint" is how files are published, "resident" how kt-kernel keeps experts in
    memory, "gguf" a file for llama.cpp. `rest_bytes` is for all that is not a routed expert.
    `isa`: each inner list is a set of instructions of which the whole is needed; one set suffices.
    """

    name: str
    kind: Literal["checkpoint", "resident", "gguf"]
    expert_bytes: float
    rest_bytes: float
    source: str
    confidence: Confidence
    from_format: str | None = None
    kt_method: str | None = None
    isa: tuple[tuple[str, ...], ...] = ()
    aliases: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True)
class Cpu:
    """A processor, figures for one socket.

    `bandwidth_gb_s` is theoretical with every channel populated; `measured_bandwidth_gb_s` what a
    streaming test read; `kernel_bandwidth_gb_s` what an expert kernel drew. `memory_mt_s_max` is
    for MRDIMM or validated platforms. `nodes_per_socket`: NUMA nodes as delivered, `numa_choices`
    what the firmware can be set to.
    """

    name: str
    vendor: Literal["GenuineIntel", "AuthenticAMD", "ARM"]
    microarchitecture: str
    cores: int
    max_sockets: int
    isa: tuple[str, ...]
    bandwidth_gb_s: float
    source: str
    confidence: Confidence
    threads_per_core: int = 2
    memory_channels: int | None = None
    memory_mt_s: int | None = None
    memory_mt_s_max: int | None = None
    memory_type: str | None = None
    measured_bandwidth_gb_s: float | None = None
    kernel_bandwidth_gb_s: float | None = None
    bandwidth_note: str | None = None
    tdp_w: int | None = None
    nodes_per_socket: int = 1
    numa_choices: tuple[int, ...] = (1,)
    kt_methods: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    note: str | None = None

    @property
    def vector(self) -> Vector:
        """The widest instructions that weight kernels use on it."""
        if "amx_int8" in self.isa:
            return "amx"
        if "avx512f" in self.isa:
            return "avx512"
        return "avx2" if "avx2" in self.isa else "arm"


@dataclass(frozen=True)
class Gpu:
    """A card or module, figures for one.

    `memory_gb` as sold, `memory_mib` as its driver's tool shows it. `nvlink_gb_s` both directions
    of its direct links (AMD: Infinity Fabric), 0 where there are none; `nvlink_links` how many
    lie between it and the switch, or its bridged neighbour. `machine_names`: how the driver's
    tool names it; several rows may share one and differ in memory. `pci_ids`: the device on the
    bus, which tells a card that no driver serves yet.
    """

    name: str
    vendor: Literal["nvidia", "amd"]
    memory_gb: int
    bandwidth_gb_s: float
    tflops_bf16: float
    compute_capability: str
    nvlink_gb_s: float
    pcie_gen: int
    pcie_gb_s: float
    source: str
    confidence: Confidence
    memory_mib: int | None = None
    memory_source: str | None = None
    nvlink_links: int = 0
    nvswitch: bool = False
    tdp_w: int | None = None
    driver_branch: int | None = None
    open_module_required: bool | None = None
    machine_names: tuple[str, ...] = ()
    pci_ids: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    note: str | None = None

    @property
    def memory_bytes(self) -> int:
        """Memory as its driver shows it; as sold, in GiB, where that is not known."""
        return self.memory_mib << 20 if self.memory_mib else self.memory_gb << 30


@dataclass(frozen=True)
class Plugin:
    """A package of this project inside an engine's environment, and the formats it adds."""

    name: str
    version: str
    formats: tuple[str, ...]
    python: tuple[str, ...]
    glibc: str
    installed_bytes: int
    source: str

    @property
    def lock_name(self) -> str:
        """File name of the lock of what it brings."""
        return f"{self.name}-{self.version}.txt"


@dataclass(frozen=True)
class Engine:
    """One version of an engine, what it needs and what it takes. Sizes in bytes.

    `overhead_bytes` is host memory beside weights and cache, `gpu_overhead_bytes` the same of
    each GPU; `install_peak_bytes` the disk room that installing takes. `methods` maps a weight
    format to the name by which a hybrid engine asks for it. `moe_tuner_sha256`: digest of
    benchmarks/kernels/benchmark_moe.py in the sources of this version.
    """

    name: str
    variant: str
    version: str
    distribution: str
    module: str
    python: tuple[str, ...]
    glibc: str
    arch: tuple[str, ...]
    isa_any: tuple[str, ...]
    formats: tuple[str, ...]
    architectures: tuple[str, ...]
    installed_bytes: int
    install_peak_bytes: int
    overhead_bytes: int
    source: str
    confidence: Confidence
    numa_bind_flags: bool = False
    mla: dict[str, int] | None = None
    methods: dict[str, str] | None = None
    driver_branch: int | None = None
    torch: str | None = None
    cuda: str | None = None
    transformers: str | None = None
    compute_capabilities: tuple[str, ...] = ()
    gpu_memory_utilization: float | None = None
    gpu_overhead_bytes: int = 0
    plugin: Plugin | None = None
    moe_tuner_sha256: str | None = None
    note: str | None = None

    def lock_name(self, python: str) -> str:
        """File name of the lock for a Python such as "3.11"."""
        tag = "cp" + python.replace(".", "")
        return f"{self.name}-{self.variant}-{self.version}-{tag}.txt"


@dataclass(frozen=True)
class Flag:
    """What versions of an engine make of a flag, or of one value of it.

    `becomes`: the flag that a plan puts in its place where it is not taken, "nothing" where the
    job is done without one; None where a person has to decide.
    """

    engine: str
    flag: str
    versions: dict[str, Verdict]
    source: str
    confidence: Confidence
    value: str | None = None
    replacement: str | None = None
    becomes: str | None = None
    reason: str | None = None
    default: str | None = None


@dataclass(frozen=True)
class FlagSet:
    """Flags that every one of these versions of an engine accepts."""

    engine: str
    name: str
    versions: tuple[str, ...]
    flags: tuple[str, ...]
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class FlagState:
    """The answer for one flag at one version."""

    flag: str
    status: Verdict | Literal["unknown"]
    replacement: str | None = None
    reason: str | None = None
    source: str | None = None
    becomes: str | None = None


@dataclass(frozen=True)
class System:
    """An operating system as it comes; `proven` where the tests provision one."""

    id: str
    version: str
    proven: bool
    source: str
    confidence: Confidence
    glibc: str | None = None
    python: str | None = None
    kernel: str | None = None
    nvidia_driver: str | None = None


@dataclass(frozen=True)
class Cuda:
    """A CUDA version and the drivers that run it.

    `compatible_driver` runs its machine code by minor-version compatibility, which leaves PTX out.
    """

    name: str
    driver: str
    compatible_driver: str
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class Rule:
    """A rule about drivers, in words, with the branch it asks for where it asks for one."""

    name: str
    text: str
    source: str
    confidence: Confidence
    driver_branch: int | None = None


@dataclass(frozen=True)
class Packages:
    """Package names that bring a driver branch on a distribution; `{branch}` stands for it."""

    name: str
    packages: tuple[str, ...]
    source: str
    confidence: Confidence
    note: str | None = None


@dataclass(frozen=True)
class Release:
    """The version of a driver branch that is installed where nobody names another."""

    name: str
    version: str
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class Repository:
    """NVIDIA's package repository for a distribution, and what its packages are called there.

    `{branch}` stands for the branch; `a|b` for the first of them that has the version: names have
    lost and kept their branch differently. `fabric` is for machines with switches, `imex` for those
    that have that service already. `fingerprint` is of the primary key in `key`.
    """

    name: str
    id: str
    version: str
    url: str
    key: str
    fingerprint: str
    userland: tuple[str, ...]
    open_module: tuple[str, ...]
    closed_module: tuple[str, ...]
    fabric: tuple[str, ...]
    source: str
    confidence: Confidence
    imex: tuple[str, ...] = ()


@dataclass(frozen=True)
class TorchBuild:
    """Which torch and CUDA a range of engine versions brings."""

    name: str
    engine: str
    source: str
    confidence: Confidence
    torch: str | None = None
    cuda: str | None = None
    driver_branch: int | None = None
    note: str | None = None


@dataclass(frozen=True)
class Drivers:
    """The matrix of drivers, CUDA and PyTorch."""

    cuda: tuple[Cuda, ...] = ()
    rules: tuple[Rule, ...] = ()
    packages: tuple[Packages, ...] = ()
    torch: tuple[TorchBuild, ...] = ()
    releases: tuple[Release, ...] = ()
    repositories: tuple[Repository, ...] = ()

    def branch_for(self, cuda: str) -> int | None:
        """Driver branch that a CUDA version was made for; None where it is not known."""
        row = next((row for row in self.cuda if row.name == cuda), None)
        return int(row.driver.split(".")[0]) if row else None

    def release(self, branch: int) -> str | None:
        """Version of a branch to install; None where the catalogue pins none."""
        row = next((row for row in self.releases if row.name == str(branch)), None)
        return row.version if row else None

    def repository(self, system: str | None, version: str | None) -> Repository | None:
        """NVIDIA's repository for a distribution's release; None where there is none."""
        wanted = (system, version)
        return next((row for row in self.repositories if (row.id, row.version) == wanted), None)


@dataclass(frozen=True)
class ApiPrice:
    """What an API asks for a million tokens; `model` names a model of the catalogue."""

    name: str
    input_usd_per_mtok: float
    output_usd_per_mtok: float
    source: str
    confidence: Confidence
    model: str | None = None
    cached_input_usd_per_mtok: float | None = None
    note: str | None = None


@dataclass(frozen=True)
class GpuHour:
    """What an hour of one GPU costs to own or rent, and its share of the machine's power."""

    name: str
    hyperscaler_usd: float
    neocloud_usd: float
    rental_3_years_usd: float
    power_kw: float | None
    source: str
    confidence: Confidence
    list_usd: float | None = None


@dataclass(frozen=True)
class MachineHour:
    """What an hour of a whole machine was seen to cost."""

    name: str
    gpu: str
    gpus: int
    usd: float
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class Purchase:
    """What one card was seen to cost, as a range."""

    name: str
    low_usd: float
    high_usd: float
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class Assumption:
    """A figure that a cost needs and that nobody told us."""

    name: str
    value: float
    unit: str
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class Prices:
    """What is paid, for the sums of a report. US dollars."""

    api: tuple[ApiPrice, ...] = ()
    gpu_hour: tuple[GpuHour, ...] = ()
    machine_hour: tuple[MachineHour, ...] = ()
    purchase: tuple[Purchase, ...] = ()
    assumptions: tuple[Assumption, ...] = ()

    def assumed(self, name: str) -> float:
        """Return a figure by name. Raises KeyError for one that is not there."""
        found = {row.name: row.value for row in self.assumptions}
        return found[name]


@dataclass(frozen=True)
class Broken:
    """A combination that is known not to work. What a row leaves out does not matter to it.

    Versions from `since` on and before `before`; `tensor_parallel_above` ranks or fewer are well;
    `flags` are all present (a name, or `name=value`). `leaves_out`: flags that a plan takes out
    of the inventory's, because the engine serves as well without them.
    """

    id: str
    title: str
    severity: Literal["blocker", "warning", "info"]
    engine: str
    fix: str
    source: str
    confidence: Confidence
    variant: str | None = None
    since: str | None = None
    before: str | None = None
    models: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    tensor_parallel_above: int | None = None
    leaves_out: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True)
class Combination:
    """What is to run together; `flags` as written, `--name` or `--name=value`."""

    engine: str
    variant: str
    version: str
    model: str
    weights_format: str
    tensor_parallel: int = 1
    capability: str | None = None
    flags: tuple[str, ...] = ()
