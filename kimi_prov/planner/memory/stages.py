"""The runs of layers that vLLM's pipeline parallelism cuts a model into, and what each holds."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from kimi_prov.catalog import model_bytes
from kimi_prov.planner.decisions import Stage

if TYPE_CHECKING:
    from kimi_prov.catalog.models import Architecture


def cut_stages(a: Architecture, count: int) -> list[Stage]:
    """Cut a model into `count` stages as vLLM does (0.25.1, `get_pp_indices`), at most its layers.

    What is left over goes to the stages from the last but one backwards. Dense layers come first.
    """
    count = min(count, a.layers)
    each, over = divmod(a.layers, count)
    sizes = [each + (count - 1 - over <= index < count - 1) for index in range(count)]
    starts = accumulate(sizes, initial=0)
    return [
        Stage(
            layers=size,
            dense=min(size, max(0, a.dense_layers - start)),
            embedding=index == 0,
            head=index == count - 1,
        )
        for index, (start, size) in enumerate(zip(starts, sizes, strict=False))
    ]


def count_plain_bytes(a: Architecture, weights_format: str, ranks: int, stage: Stage) -> int:
    """Return the bytes of all that is not a routed expert, on each of a stage's `ranks` GPUs.

    Every stage has the whole vision tower; of the other layers' weights each has as many as layers.
    """
    table = model_bytes.count_table_bytes(a) // ranks
    dense = model_bytes.count_dense_bytes(a, weights_format) // ranks
    all_layers = model_bytes.count_plain_bytes(a, weights_format, ranks)
    even = all_layers - 2 * table - dense - model_bytes.count_vision_bytes(a)
    elsewhere = ((not stage.embedding) + (not stage.head)) * table
    if a.dense_layers:
        elsewhere += dense * (a.dense_layers - stage.dense) // a.dense_layers
    return all_layers - elsewhere - even * (a.layers - stage.layers) // a.layers


def count_experts_bytes(a: Architecture, weights_format: str, stage: Stage, experts: int) -> int:
    """Return the bytes of so many routed experts of each of a stage's layers."""
    every = round(model_bytes.count_expert_bytes(a, weights_format) * experts)
    return every * (stage.layers - stage.dense) // max(1, a.layers - a.dense_layers)


def count_stage_share(size: int, a: Architecture, stage: Stage) -> int:
    """Return a stage's share of what every layer has as much of, rounded up."""
    return -(-size * stage.layers // a.layers)
