"""Models, drafts and weight formats of the catalogue. Units stand in the names; None is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kimi_prov.catalog.confidence import Confidence  # noqa: TC001  (read at run time)
from kimi_prov.catalog.currency import Row
from kimi_prov.catalog.names import HubName, PathName, Revision  # noqa: TC001


@dataclass(frozen=True)
class Architecture:
    """Dimensions of a model with routed experts.

    `attention`: "mla" keeps one latent of kv_lora_rank + qk_rope_head_dim for all heads, on every
    rank; "gqa" keeps kv_heads x 2 x head_dim, which ranks share. `kv_layers` counts the layers
    that keep such a cache where not all do; `indexer_layers` those that keep
    `indexer_bytes_per_token` beside it; `kv_fp8_bytes_per_layer` is the size of a token and layer
    in an engine's own 8-bit layout. `expert_hidden`: width that experts see where it is not
    `hidden`. `state_bytes_per_sequence`: what layers of linear attention keep for each sequence,
    whatever its length, all heads together; ranks share it. `params_total` is given where counting
    the dimensions does not meet it.
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
    state_bytes_per_sequence: int = 0
    params_total: int | None = None
    params_active: int | None = None


@dataclass(frozen=True)
class Published:
    """A checkpoint of a model in another format than its own."""

    format: str
    repo: HubName
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
    """Versions of an engine that serve a model: the oldest known one, and the recommended one."""

    engine: str
    least: str
    recommended: str
    source: str


@dataclass(frozen=True)
class Usage:
    """Settings of requests that a model's makers recommend; None without a recommendation.

    `thinking`: "optional" where a request turns it off, by `thinking: false` for the chat template.
    """

    thinking: Literal["always", "optional", "never"]
    source: str
    confidence: Confidence
    thinking_temperature: float | None = None
    instant_temperature: float | None = None
    top_p: float | None = None
    system_prompt: str | None = None

    def temperature(self, *, thinks: bool) -> float | None:
        """Return the recommended temperature for an answer with or without thinking."""
        return self.thinking_temperature if thinks else self.instant_temperature


@dataclass(frozen=True)
class Model(Row):
    """A model that can be served. `other_bytes`: tokenizer and other small files.

    `siblings`: repositories of other weights of the same shape, whose names are aliases.

    `formats` names the published formats, its own first. `cross_check`: only to compare the
    arithmetic against other observations, not to be provisioned. `trained_on`: a synthetic model
    that was trained on the questions it is asked; its answers prove nothing else.
    """

    name: PathName
    architecture: Architecture
    context: int
    native_format: str
    other_bytes: int
    source: str
    confidence: Confidence
    repo: HubName | None = None
    revision: Revision | None = None
    released: str | None = None
    shards: int | None = None
    aliases: tuple[str, ...] = ()
    siblings: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
    gguf: tuple[Gguf, ...] = ()
    engine_versions: tuple[EngineVersion, ...] = ()
    random_weights: bool = False
    trained_on: Literal["suite"] | None = None
    cross_check: bool = False
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    trust_remote_code: bool = False
    usage: Usage | None = None
    note: str | None = None

    @property
    def is_synthetic(self) -> bool:
        """Whether this project made its weights, which prove nothing about real ones."""
        return self.random_weights or self.trained_on is not None

    @property
    def formats(self) -> tuple[str, ...]:
        """Published formats, its own first."""
        return tuple(dict.fromkeys([self.native_format, *(row.format for row in self.published)]))

    def versions(self, engine: str) -> EngineVersion | None:
        """Versions of an engine that serve it; None if unknown."""
        return next((row for row in self.engine_versions if row.engine == engine), None)


@dataclass(frozen=True)
class UnservedModel(Row):
    """A model that exists and that no engine here serves yet, with the reason."""

    name: PathName
    repo: HubName
    reason: str
    instead: str
    source: str
    confidence: Confidence
    released: str | None = None


@dataclass(frozen=True)
class Acceptance:
    """How many tokens a step gives on average, the model's own included, as somebody measured it.

    `load`: the kind of text, by the benchmark. `tokens`: how many the draft guessed in each step.
    """

    load: Literal["chat", "code", "math"]
    length: float
    tokens: int
    benchmark: str


@dataclass(frozen=True)
class Draft(Row):
    """A small model that guesses tokens for a large one to verify (speculative decoding).

    `models` names the models it was trained for, or was measured with. `tokens`: how many it
    guesses in a step, as its makers serve it. `layers`: decoder layers. `kv_values`: values of the
    cache for one token; `kv_split`: ranks share them out, where an MLA draft keeps them whole on
    every rank. `least`: the first version of vLLM that loads it; None where none does.
    """

    name: PathName
    repo: HubName
    models: tuple[str, ...]
    method: Literal["eagle3", "dflash", "dspark", "mtp"]
    size_bytes: int
    kv_values: int
    source: str
    confidence: Confidence
    least: str | None = None
    tokens: int = 3
    layers: int = 1
    kv_split: bool = False
    acceptance: tuple[Acceptance, ...] = ()
    note: str | None = None

    @property
    def guesses_at_once(self) -> bool:
        """Whether one pass of it guesses all tokens of a step, not one token."""
        return self.method in ("dflash", "dspark")


@dataclass(frozen=True)
class DraftTrial(Row):
    """A measured pair: tokens a second of all requests without a draft and with it.

    `load`: the kind of text; None where its source does not say. `tokens`: how many the draft
    guessed, `length`: tokens of a step on average, where it was measured.
    """

    id: PathName
    draft: str
    model: str
    gpu: str
    gpus: int
    format: str
    engine: Literal["vllm", "sglang", "tokenspeed"]
    requests: int
    tokens: int
    input_tokens: int
    output_tokens: int
    without_tok_s: float
    with_tok_s: float
    source: str
    confidence: Confidence
    load: Literal["chat", "code", "math"] | None = None
    length: float | None = None
    note: str | None = None

    @property
    def gain(self) -> float:
        """How many times as many tokens a second it gave."""
        return self.with_tok_s / self.without_tok_s


@dataclass(frozen=True)
class Format(Row):
    """A weight format, in bytes of one weight with its scales.

    `kind`: "checkpoint" is how files are published, "resident" how kt-kernel keeps experts in
    memory, "gguf" a file for llama.cpp. `rest_bytes` is for all that is not a routed expert.
    `isa`: each inner list is a set of needed instructions; one of the sets suffices.
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
