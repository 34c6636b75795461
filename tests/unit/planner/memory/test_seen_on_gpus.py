"""Plans beside what the engine logged when it was started with them.

vLLM 0.25.1 on 4x H200 (2026-11-21, the recording h200-x4), the plan's own command line with
`--load-format dummy`: Kimi K2's dimensions at full width, 46 layers. None of these figures was used
to make the planner, but for the draft's own.

And on 2x and 4x H200 (2026-11-28 and 29, the recordings h200-x2-full-2 to h200-x2-full-4 and
h200-x4-full): four layers, and twenty-four, as `apply` served them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plan_inputs import gpu_facts

from kimi_prov.catalog import model_bytes
from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts import recording
from kimi_prov.planner.memory import stages
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings

GIB = 1 << 30
DATA = Path(__file__).resolve().parents[3] / "data"


def planned(**more: Any) -> dict[str, Any]:
    settings = {
        "kimi_model": "kimi-cut-46",
        "kimi_weights_source": "file:///srv/model",
        "kimi_engine_version": "0.25.1",
        "kimi_context": 65536,
        "kimi_concurrency": 64,
        **more,
    }
    facts = recording.read_recording(DATA / "recordings" / "h200-x4")
    catalogue = load_catalogue(DATA / "catalogue-cut")
    return make_plan(facts, parse_settings(settings, host="h200-x4"), catalogue)


@pytest.mark.parametrize(
    ("settings", "kv_gib", "tokens"),
    [
        ({}, 18.91, 383_136),
        ({"kimi_kv_dtype": "fp8"}, 18.87, 764_544),
    ],
    ids=["bf16", "fp8"],
)
def test_weights_and_cache_are_what_the_engine_logged(
    settings: dict[str, Any], kv_gib: float, tokens: int
) -> None:
    memory = planned(**settings)["memory"]
    assert memory["weights_bytes_per_gpu"] / GIB == pytest.approx(105.35, rel=0.005)
    assert memory["kv_available_bytes_per_gpu"] / GIB == pytest.approx(kv_gib, rel=0.02)
    assert memory["kv_tokens_max"] == pytest.approx(tokens, rel=0.02)


def test_a_draft_takes_no_more_than_is_planned_for_it() -> None:
    """Seen: 0.61 GiB of weights (what the model has too is shared), graphs of 1.92 for 0.44 GiB."""
    memory = planned(kimi_speculative_model="cut-eagle3-mla")["memory"]
    assert memory["kv_available_bytes_per_gpu"] / GIB <= 16.77
    assert memory["kv_tokens_max"] == pytest.approx(332_656, rel=0.05)
    assert memory["kv_tokens_max"] <= 332_656


def test_one_request_decodes_as_fast_as_is_predicted() -> None:
    """6.57 ms a token, 1,024 in and 128 out; random weights, which one request does not notice."""
    speed = planned()["throughput"]["single_tok_s"]
    assert speed["low"] <= 1000 / 6.57 <= speed["high"]


def of_layers(name: str = "kimi-cut-4", *, cards: int = 2, **more: Any) -> dict[str, Any]:
    """The memory of the plan for so many H200."""
    settings = {
        "kimi_model": name,
        "kimi_weights_source": "file:///srv/model",
        "kimi_engine": "vllm",
        "kimi_engine_version": "0.25.1",
        "kimi_context": 4096,
        "kimi_concurrency": 64,
        "kimi_kv_dtype": "bf16",
        **more,
    }
    catalogue = load_catalogue(DATA / "catalogue-cut")
    plan = make_plan(gpu_facts(cards), parse_settings(settings, host="h200"), catalogue)
    return dict(plan["memory"])


SHIPPED = {"enforce-eager": True, "max-num-batched-tokens": 4096}
EXPERTS = {"enable-expert-parallel": True}
SEEING = {**EXPERTS, "max-num-batched-tokens": 8192}


@pytest.mark.parametrize(
    ("name", "settings", "weights_gib", "tokens"),
    [
        ("kimi-cut-4", {"kimi_concurrency": 1, "kimi_engine_args": SHIPPED}, 16.43, 25_520_592),
        (
            "kimi-cut-4-seeing",
            {"kimi_concurrency": 256, "kimi_kv_dtype": "fp8", "kimi_engine_args": SEEING},
            17.32,
            49_527_808,
        ),
        # Without graphs: 0.44 GiB for them was planned once, 3 % of these tokens.
        ("kimi-cut-24", {"kimi_concurrency": 1, "kimi_engine_args": SHIPPED}, 108.13, 691_952),
        # Each of its two engines told its own, and was planned for its even share of the requests.
        (
            "kimi-cut-4",
            {"kimi_engine_args": {**EXPERTS, "data-parallel-size": 2, "max-num-seqs": 32}},
            19.43,
            2 * 24_229_776,
        ),
        # The same, each planned for twice its share.
        (
            "kimi-cut-4",
            {"kimi_engine_args": {**EXPERTS, "data-parallel-size": 2}},
            19.43,
            2 * 24_181_072,
        ),
    ],
    ids=["h100x8", "dgx-h200", "h100x8 of 24", "data parallel", "data parallel, uneven"],
)
def test_layers_on_two_cards_take_what_the_engine_logged(
    name: str, settings: dict[str, Any], weights_gib: float, tokens: int
) -> None:
    memory = of_layers(name, **settings)
    assert memory["weights_bytes_per_gpu"] / GIB == pytest.approx(weights_gib, rel=0.003)
    assert memory["kv_tokens_max"] == pytest.approx(tokens, rel=0.01)


@pytest.mark.parametrize(
    ("args", "dtype", "weights_gib", "tokens"),
    [
        ({"enable-expert-parallel": False}, "bf16", 8.29, 27_260_400),
        (EXPERTS, "bf16", 8.29, 27_257_488),
        ({}, "fp8", 8.29, 54_514_944),
        ({"decode-context-parallel-size": 4}, "bf16", 8.29, 107_972_288),
        # Each card's experts take the passes of all engines: 4 % too many were planned once.
        (
            {**EXPERTS, "data-parallel-size": 4, "max-num-seqs": 16},
            *("bf16", 12.79, 4 * 24_958_864),
        ),
    ],
    ids=["tensor", "expert", "8-bit cache", "cache shared out", "data"],
)
def test_four_layers_on_four_cards_take_what_the_engine_logged(
    args: dict[str, Any], dtype: str, weights_gib: float, tokens: int
) -> None:
    memory = of_layers(cards=4, kimi_kv_dtype=dtype, kimi_engine_args=args)
    assert memory["weights_bytes_per_gpu"] / GIB == pytest.approx(weights_gib, rel=0.003)
    assert memory["kv_tokens_max"] == pytest.approx(tokens, rel=0.01)


def test_stages_of_four_layers_take_what_the_engine_logged() -> None:
    """The first, with one layer of experts, took 12.26 GiB; the other has two, and sets the cache.

    What the other took was not kept. Half of the model was planned once: 4 % too many tokens.
    """
    shape = load_catalogue(DATA / "catalogue-cut").model("kimi-cut-4").architecture
    first, last = (
        stages.count_plain_bytes(shape, "int4", 1, stage)
        + stages.count_experts_bytes(shape, "int4", stage, shape.experts)
        for stage in stages.cut_stages(shape, 2)
    )
    assert first / GIB == pytest.approx(12.26, rel=0.003)
    assert first + last == pytest.approx(
        model_bytes.count_checkpoint_bytes(shape, "int4"), rel=1e-6
    )
    memory = of_layers(
        kimi_engine_args={
            "tensor-parallel-size": 1,
            "pipeline-parallel-size": 2,
            "enable-expert-parallel": True,
        }
    )
    assert memory["weights_bytes_per_gpu"] == last
    assert memory["kv_tokens_max"] == pytest.approx(48_323_056, rel=0.01)


def test_stages_of_two_cards_each_take_what_the_engine_logged() -> None:
    """On two hosts with two cards each: 6.17 and 10.27 GiB on either card."""
    shape = load_catalogue(DATA / "catalogue-cut").model("kimi-cut-4").architecture
    first, last = (
        stages.count_plain_bytes(shape, "int4", 2, stage)
        + stages.count_experts_bytes(shape, "int4", stage, shape.experts) // 2
        for stage in stages.cut_stages(shape, 2)
    )
    assert first / GIB == pytest.approx(6.17, rel=0.005)
    assert last / GIB == pytest.approx(10.27, rel=0.005)
    args = {**EXPERTS, "tensor-parallel-size": 2, "pipeline-parallel-size": 2}
    memory = of_layers(cards=4, kimi_engine_args=args)
    assert memory["weights_bytes_per_gpu"] == last
    assert memory["kv_tokens_max"] == pytest.approx(53_144_576, rel=0.01)
