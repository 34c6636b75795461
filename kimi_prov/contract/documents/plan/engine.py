"""Plan: the engine, the model and how they are started."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kimi_prov.contract.documents.form import Bytes, Count, CpuList, NotRequired, Positive, Rule

EngineName = Literal["vllm", "ktransformers"]
EngineVariant = Literal["cuda", "rocm", "cpu"]
CacheType = Literal["bf16", "fp8"]


class EnginePlan(TypedDict):
    """The engine, and the environment in which it runs."""

    name: EngineName
    variant: EngineVariant
    version: str
    reason: str
    distribution: str
    module: str
    env_name: str
    env_dir: str
    python: str
    python_version: str
    python_reason: NotRequired[str]
    lock: str
    locks: NotRequired[list[str]]
    provisioned: NotRequired[bool]
    torch: NotRequired[str | None]
    cuda: NotRequired[str | None]


class ModelPlan(TypedDict):
    """The model that is served."""

    name: str
    revision: str
    dir: str
    serve_dir: str
    served_names: Annotated[list[str], Rule(min_items=1)]
    random_weights: bool
    trained_on: NotRequired[Literal["suite"]]
    architecture: str
    context: Count
    context_max: Positive
    weights_format: str
    bytes: Bytes
    kv_dtype: NotRequired[CacheType]


class InstancePlan(TypedDict):
    """An engine that runs."""

    index: Count
    argv: Annotated[list[str], Rule(min_items=1)]
    env: dict[str, str]
    numactl: list[str]
    numa_nodes: list[Count]
    cpus: CpuList | None
    gpus: list[Count]
    port: Count | None
    """null on a host of a group that is not its head."""
    gpu_nodes: NotRequired[list[Count]]
    unit: NotRequired[str]


class ParallelPlan(TypedDict):
    """How the model is distributed over GPUs and hosts."""

    hosts: NotRequired[Positive]
    tensor: Positive
    expert: bool
    decode_context: Positive
    pipeline: Positive
    data: Positive
    reason: NotRequired[str]
    """Why this layout was chosen among others, with the next best; absent where there is one."""


class ExpertsPlan(TypedDict):
    """How experts are computed on the processors."""

    by: Literal["native", "kt-kernel", "vllm"]
    dense_weights: NotRequired[Literal["bf16", "int8"]]
    threads: int | None
    nodes: list[int]


class HybridPlan(TypedDict):
    """How GPUs and processors share the model."""

    method: str | None
    threads: Positive
    pools: Positive
    nodes: list[Count]
    gpu_experts: Count | None


class SpeculativePlan(TypedDict):
    """The draft model, and how many tokens it proposes."""

    name: str
    method: str
    tokens: Positive


class StandInPlan(TypedDict):
    """..."""

    said: str
    engine: EnginePlan
    model: ModelPlan
    instances: Annotated[list[InstancePlan], Rule(min_items=1)]
    blockers: list[str]


class MoeTuningPlan(TypedDict):
    """The tuning of the experts' kernels for this machine; null where there is no tuner."""

    read: bool
    """Whether the engine would read a tuned table."""
    reason: str
    dir: str
    script: str
    url: str
    sha256: str
    argv: list[str]


class NcclPlan(TypedDict):
    """How GPUs communicate with each other."""

    guard: bool
