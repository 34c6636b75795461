"""`kimi-prov/bench/v1`: the speed of machines and their models."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Amount, Bytes, Count, NotRequired, Positive


class Bench(TypedDict):
    """The speed of each machine and its model.

    Seconds, bytes a second, tokens a second; null is unknown. A host that was not measured has only
    ok, detail and stand_ins.
    """

    schema: Literal["kimi-prov/bench/v1"]
    ok: bool
    hosts: dict[str, HostBench | HostNotMeasured]


class HostBench(TypedDict):
    """The measurements of one host."""

    ok: bool
    detail: str
    normal: bool | None
    model: str
    engine: EngineVersion
    machine: NotRequired[BenchedMachine]
    serving: NotRequired[Serving]
    measured_at: str
    load: MachineLoad
    memory: MemorySpeed
    layer: LayerNotMeasured | LayerSpeed
    serve: ServeSpeed
    compared: list[Compared]
    basis: str
    look_at: list[LookAt]
    last: LastBench | None
    stand_ins: list[str]


class EngineVersion(TypedDict):
    """The engine that served."""

    name: str
    variant: str
    version: str


class BenchedMachine(TypedDict):
    """What the speed depends on, without anything that identifies the owner."""

    processor: str | None
    sockets: Count | None
    cores: Count | None
    memory_bytes: Bytes | None
    memory_channels: Count | None
    memory_theoretical_bytes_per_s: Amount | None
    gpus: list[BenchedGpus]


class BenchedGpus(TypedDict):
    """GPUs of one kind."""

    model: str | None
    memory_bytes: Bytes | None
    count: Positive


class Serving(TypedDict):
    """How the model was served."""

    weights_format: str | None
    kv_dtype: str | None
    context: Count | None
    concurrency: Count | None
    instances: Count | None
    tensor: Count | None
    pipeline: Count | None
    data: Count | None
    method: str | None
    gpu_experts: Count | None
    experts_by: str | None
    threads: Count | None


class MachineLoad(TypedDict):
    """Other load during the measurement."""

    average: float
    busy: bool


class MemorySpeed(TypedDict):
    """The read speed of the machine's memory."""

    bytes_per_s: float | None
    by: Literal["probe", "torch"] | None
    reason: str | None
    seconds: float | None
    nodes: list[NodeSpeed]


class NodeSpeed(TypedDict):
    """The same of one NUMA node."""

    id: Count
    bytes_per_s: float | None


class LayerNotMeasured(TypedDict):
    """No layer of the model was computed, and why."""

    available: Literal[False]
    reason: str


class LayerSpeed(TypedDict):
    """The speed of one layer of experts on the processors."""

    available: Literal[True]
    reason: str | None
    method: str
    experts: Count
    experts_of_model: Count
    layers_of_model: Count
    threads: Count
    bytes: Bytes
    kernel: str
    variant: str
    load_s: float | None
    rows: list[LayerBatch]


class LayerBatch(TypedDict):
    """A number of tokens at once."""

    batch: Count
    seconds: float
    bytes_per_s: float


class ServeSpeed(TypedDict):
    """The speed of the served model."""

    input_tokens: Count
    output_tokens: Count
    levels: list[ServeLevel]
    load: NotRequired[AskedLoad]
    warm_up: NotRequired[WarmUp | None]
    """Before all measurements, and in no other figure."""


class ServeLevel(TypedDict):
    """A load that was put on the server."""

    concurrency: Positive
    """Requests in flight at most; all requests for a load with a rate and no limit."""
    requests: Count
    failed: Count
    seconds: float
    input_tokens: Count
    output_tokens: Count
    ttft_s: Percentiles
    tpot_s: Percentiles
    decode_tok_s: float | None
    aggregate_tok_s: float | None
    prefill_tok_s: float | None
    rounds: NotRequired[Positive]
    """Rounds that the figures are medians of; counts, tokens and seconds are of all of them."""
    left_out: NotRequired[Count]
    """Prompts of a file that the client itself skipped: too short, or too long for it."""
    itl_s: NotRequired[Percentiles]
    """Between two tokens of a request, over all tokens."""
    spread: NotRequired[Spread | None]
    """The least and the greatest over the rounds; null for one round."""
    engine: NotRequired[EngineMetrics]
    power: NotRequired[GpuPower]
    name: NotRequired[str]
    """Its short name: 4 at once, 20/s."""


class Percentiles(TypedDict):
    """Over all requests of a load."""

    median: float | None
    p99: float | None


class Spread(TypedDict):
    """The least and the greatest over the rounds."""

    decode_tok_s: Bounds | None
    aggregate_tok_s: Bounds | None
    prefill_tok_s: Bounds | None
    ttft_s: Bounds | None


class Bounds(TypedDict):
    """The least and the greatest."""

    low: float
    high: float


class EngineMetrics(TypedDict):
    """The engine's own /metrics while this load ran, including other users' requests."""

    samples: Count
    cache_use: MeanAndMax | None
    """Share of the cache, 0 to 1; of several instances the fullest."""
    running: MeanAndMax | None
    waiting: MeanAndMax | None
    preemptions: int | None
    """Requests that were preempted for others, and computed again."""
    prefix_cache: PrefixCacheUse
    reason: str | None
    """Why it is unknown."""


class MeanAndMax(TypedDict):
    """Over the samples of a load."""

    mean: float
    max: float


class PrefixCacheUse(TypedDict):
    """Tokens of prompts that were found in the prefix cache."""

    queried_tokens: int | None
    hit_tokens: int | None
    hit_share: float | None


class GpuPower(TypedDict):
    """The power of the engine's GPUs while this load ran: not of the rest of the machine."""

    gpus: Count
    samples: Count
    watts: MeanAndMax | None
    joules: float | None
    tokens_per_joule: float | None
    """Tokens of answers."""
    reason: str | None
    """Why it is unknown."""


class AskedLoad(TypedDict):
    """The requested load; what the machine chose is filled in."""

    profile: str | None
    requests: int | None
    rate_per_s: float | None
    rounds: Positive
    chat: bool
    images: Count
    image_width: int | None
    image_height: int | None
    prompts: Literal["sharegpt", "visionarena"] | None
    prompts_of_file: int | None
    images_of_file: int | None
    unanswered_of_file: NotRequired[int | None]
    """Conversations of the file that were left out beside its prompts: they have no answer, and so
    no length of an answer."""
    input_tokens: int | None
    output_tokens: int | None
    chosen_lengths: bool
    """Nobody gave the lengths: they are the prediction's, or shorter."""
    told: str
    """The same in words."""


class WarmUp(TypedDict):
    """Requests before all measurements."""

    concurrency: Positive
    requests: Count
    failed: Count
    seconds: float
    ttft_s: Percentiles


class Compared(TypedDict):
    """A measured figure beside the planned one."""

    name: Literal["memory", "layer", "single", "prefill", "decode", "all"]
    unit: Literal["bytes_per_s", "tok_per_s"]
    measured: float | None
    predicted: PredictedSpeed | None
    verdict: Literal["normal", "slow", "fast", "unjudged"]


class PredictedSpeed(TypedDict):
    """The planned value."""

    low: float
    expected: float
    high: float


class LookAt(TypedDict):
    """What to check where a figure is slow."""

    title: str
    observed: str
    fix: str


class LastBench(TypedDict):
    """The bench before this one, compared."""

    measured_at: str
    differs: list[str]
    rows: list[LastFigure]
    levels: NotRequired[list[LastLevel]]
    """The loads of the last bench; ttft_s is a median."""


class LastFigure(TypedDict):
    """A figure then and now."""

    name: str
    then: float
    now: float
    change: float


class LastLevel(TypedDict):
    """A load of the last bench."""

    concurrency: Positive
    aggregate_tok_s: float | None
    ttft_s: float | None


class HostNotMeasured(TypedDict):
    """A host that was not measured."""

    ok: Literal[False]
    detail: str
    stand_ins: list[str]
