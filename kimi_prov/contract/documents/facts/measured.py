"""Facts: measured speeds of the machine."""

from __future__ import annotations

from typing import TypedDict

from kimi_prov.contract.documents.form import NotRequired, PositiveWhole, Quantity, Required, Whole


class MeasuredFacts(TypedDict, total=False):
    """The results of `--measure`; null without it."""

    load: Quantity | None
    busy: bool | None
    """Other work ran at the same time: the planner does not use these figures."""
    memory: MeasuredMemory | None
    disk: MeasuredDisk | None
    sha256: MeasuredRate | None
    gpus: list[MeasuredGpu]


class MeasuredMemory(TypedDict, total=False):
    """The read speed of memory."""

    bytes_per_s: Quantity | None
    seconds: Quantity | None
    reason: str | None
    nodes: list[MeasuredNode]


class MeasuredNode(TypedDict):
    """The memory of one NUMA node."""

    id: NotRequired[Whole]
    bytes_per_s: NotRequired[Quantity | None]


class MeasuredDisk(TypedDict, total=False):
    """The read speed of a disk."""

    bytes_per_s: Quantity | None
    seconds: Quantity | None
    reason: str | None
    path: str | None
    bytes: Whole | None
    direct: bool | None


class MeasuredRate(TypedDict, total=False):
    """A measured speed, or why it is unknown."""

    bytes_per_s: Quantity | None
    seconds: Quantity | None
    reason: str | None


class MeasuredGpu(TypedDict, total=False):
    """A GPU."""

    index: Required[Whole]
    memory: MeasuredRate
    copy: MeasuredRate
    copy_together: MeasuredRate
    bf16: MeasuredFlops
    fp8: MeasuredFlops


class MeasuredFlops(TypedDict, total=False):
    """The speed of a GPU's matrix product."""

    flops_per_s: Quantity | None
    seconds: Quantity | None
    reason: str | None
    by: str | None


class BenchFacts(TypedDict):
    """A speed that a bench measured."""

    concurrency: PositiveWhole
    input_tokens: PositiveWhole
    output_tokens: PositiveWhole
    decode_tok_s: Quantity | None
    prefill_tok_s: Quantity | None
