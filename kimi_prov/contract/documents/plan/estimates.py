"""Plan: memory, speed and power."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kimi_prov.contract.documents.form import (
    Amount,
    Bytes,
    Count,
    NotRequired,
    Positive,
    Required,
    Rule,
)
from kimi_prov.contract.documents.ranges import Range


class MemoryPlan(TypedDict):
    """The planned use of memory."""

    weights_bytes_total: Bytes
    weights_bytes_per_gpu: Bytes | None
    kv_bytes_per_token: Bytes
    kv_available_bytes_per_gpu: int | None
    kv_tokens_max: Count
    overhead_bytes_per_gpu: Bytes | None
    host_ram_required_bytes: Bytes
    host_ram_available_bytes: Bytes
    replicated_bytes_per_gpu: NotRequired[Bytes | None]
    gpu_bytes: NotRequired[Bytes | None]
    gpu_experts: NotRequired[Count | None]
    gpu_utilization: NotRequired[Annotated[float, Rule(minimum=0, maximum=1)] | None]
    kv_available_bytes: NotRequired[int | None]
    unit_limit_bytes: NotRequired[Bytes | None]
    """`MemoryMax=` of each engine's unit; null where no limit is safe."""
    host_parts: NotRequired[list[HostMemoryPart]]


class HostMemoryPart(TypedDict):
    """A part of the host's memory."""

    kind: Literal["weights", "cache", "overhead", "system"]
    name: str
    bytes: int


class ThroughputPlan(TypedDict, total=False):
    """The estimated speed of the machine."""

    concurrency: Required[Count]
    decode_tok_s: Required[Range]
    aggregate_tok_s: Required[Range]
    prefill_tok_s: Required[Range]
    load_s: Required[Range]
    basis: Required[str]
    running: Positive
    """Of the requests at once, those that the cache holds; the others wait."""
    single_tok_s: Range
    ttft_s: Range
    """Seconds from a request to its first token with `concurrency` requests at once."""
    single_ttft_s: Range
    """Seconds from a request to its first token with no other request."""
    kind: str
    input_tokens: Positive
    output_tokens: Positive
    assumed: str | None
    anchors: list[MeasuredAnchor]
    """Speeds that a bench of this machine measured: the figures are adapted to them."""
    more_requests: list[MoreRequests]
    """Those of `curve` above the planned number, as long as throughput grows."""
    curve: list[SpeedsByRequests]
    """Speeds with 1, 2, 4, ... requests at once, with the planned number, and with the largest
    number that runs."""


class MeasuredAnchor(TypedDict):
    """A speed that a bench measured."""

    quantity: Literal["decode", "prefill"]
    concurrency: Positive
    input_tokens: Positive
    output_tokens: Positive
    measured: float
    predicted: float


class MoreRequests(TypedDict):
    """Speeds with more requests at once."""

    concurrency: Positive
    aggregate_tok_s: Range
    prefill_tok_s: Range


class SpeedsByRequests(TypedDict):
    """Speeds with one number of requests at once."""

    concurrency: Positive
    decode_tok_s: Range
    aggregate_tok_s: Range
    prefill_tok_s: Range
    ttft_s: Range


class PowerPlan(TypedDict):
    """The machine's power at full work; a plan of an earlier version lacks all but two keys."""

    kw: Amount
    """Likely, with cooling."""
    source: str
    nameplate_kw: NotRequired[Amount]
    """The most that the machine is rated for, without cooling."""
    likely_kw: NotRequired[Amount]
    """What it draws at full work, without cooling."""
    order_kw: NotRequired[Amount]
    """What to order from the facility, without cooling."""
    cooling: NotRequired[Amount]
    """By this factor the facility draws more, with cooling."""
