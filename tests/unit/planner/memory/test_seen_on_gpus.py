"""Plans beside what the engine logged when it was started with them.

vLLM 0.25.1 on 4x H200 (2026-11-21, the recording h200-x4), the plan's own command line with
`--load-format dummy`: Kimi K2's dimensions at full width, 46 layers. None of these figures was used
to make the planner, but for the draft's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kimi_prov.catalog.loader import load
from kimi_prov.facts import recording
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse

GIB = 1 << 30
DATA = Path(__file__).resolve().parents[2] / "data"


def planned(**more: Any) -> dict[str, Any]:
    wishes = {
        "kimi_model": "kimi-cut-46",
        "kimi_weights_source": "file:///srv/model",
        "kimi_engine_version": "0.25.1",
        "kimi_context": 65536,
        "kimi_concurrency": 64,
        **more,
    }
    facts = recording.read(DATA / "recordings" / "h200-x4")
    catalogue = load(DATA / "catalogue-cut")
    return make_plan(facts, parse(wishes, host="h200-x4"), catalogue)


@pytest.mark.parametrize(
    ("wishes", "kv_gib", "tokens"),
    [
        ({}, 18.91, 383_136),
        ({"kimi_kv_dtype": "fp8"}, 18.87, 764_544),
    ],
    ids=["bf16", "fp8"],
)
def test_weights_and_cache_are_what_the_engine_logged(
    wishes: dict[str, Any], kv_gib: float, tokens: int
) -> None:
    memory = planned(**wishes)["memory"]
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
