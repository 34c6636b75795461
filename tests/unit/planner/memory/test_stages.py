"""The runs of layers of pipeline parallelism, as vLLM cuts them."""

from __future__ import annotations

import dataclasses

import pytest

from kimi_prov.catalog import model_bytes
from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.planner.memory import stages

KIMI = load_catalogue().model("kimi-k2.5").architecture


@pytest.mark.parametrize(
    ("layers", "count", "sizes"),
    [
        (61, 1, [61]),
        (61, 2, [31, 30]),
        (61, 3, [20, 21, 20]),
        (61, 4, [15, 15, 16, 15]),
        (62, 4, [15, 16, 16, 15]),
        (63, 4, [16, 16, 16, 15]),
        # vLLM leaves further stages without any.
        (2, 5, [1, 1]),
    ],
)
def test_what_is_left_over_goes_to_the_stages_before_the_last(
    layers: int, count: int, sizes: list[int]
) -> None:
    """As `vllm.distributed.utils.get_pp_indices` told; the engines' tests hold all counts to it."""
    found = stages.cut_stages(dataclasses.replace(KIMI, layers=layers), count)
    assert [stage.layers for stage in found] == sizes


def test_dense_layers_and_tables_are_at_the_ends() -> None:
    found = stages.cut_stages(dataclasses.replace(KIMI, layers=6, dense_layers=3), 3)
    assert [stage.dense for stage in found] == [2, 1, 0]
    assert [stage.embedding for stage in found] == [True, False, False]
    assert [stage.head for stage in found] == [False, False, True]


@pytest.mark.parametrize("weights_format", ["int4", "nvfp4", "fp8", "bf16"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 61])
@pytest.mark.parametrize("ranks", [1, 4])
def test_all_stages_together_hold_the_model(weights_format: str, count: int, ranks: int) -> None:
    """Each has the vision tower whole, and nothing else is held twice."""
    found = stages.cut_stages(KIMI, count)
    towers = (count - 1) * model_bytes.count_vision_bytes(KIMI)
    plain = sum(stages.count_plain_bytes(KIMI, weights_format, ranks, stage) for stage in found)
    expected = model_bytes.count_plain_bytes(KIMI, weights_format, ranks) + towers
    assert plain == pytest.approx(expected, abs=4 * count)
    experts = sum(
        stages.count_experts_bytes(KIMI, weights_format, stage, KIMI.experts) for stage in found
    )
    every = model_bytes.count_expert_bytes(KIMI, weights_format) * KIMI.experts
    assert experts == pytest.approx(every, abs=count)
