"""The stages into which vLLM's pipeline parallelism cuts a model's layers, and their bytes."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from kimi_prov.catalog import model_bytes
from kimi_prov.planner.decisions import Stage

if TYPE_CHECKING:
    from kimi_prov.catalog.models import Architecture


def cut_stages(a: Architecture, count: int) -> list[Stage]:
    """Cut a model into `count` stages, at most one for each layer, as vLLM 0.25.1 does.

    As in its `get_pp_indices`, the layers that an even division leaves over go one each to the
    stages before the last, from the back. The first layers of a model are its dense ones.
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
    """Return the bytes of all weights but routed experts, on each of a stage's `ranks` GPUs.

    Every stage holds the whole vision tower. Weights that all layers have are counted in proportion
    to the stage's layers.
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
    """Return the bytes of `experts` routed experts in each layer of a stage that has them."""
    every = round(model_bytes.count_expert_bytes(a, weights_format) * experts)
    return every * (stage.layers - stage.dense) // max(1, a.layers - a.dense_layers)


def count_stage_share(size: int, a: Architecture, stage: Stage) -> int:
    """Return a stage's share of `size` bytes that all layers share evenly, rounded up."""
    return -(-size * stage.layers // a.layers)
