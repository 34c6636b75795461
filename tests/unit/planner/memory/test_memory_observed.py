"""Memory counted from the architecture meets what engines were seen to take, within 2 %."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kimi_prov.catalog import model_bytes
from kimi_prov.catalog.loader import load_catalogue

GIB = 1 << 30
DATA = Path(__file__).resolve().parents[3] / "data" / "kv_observations.yaml"
ROWS = yaml.safe_load(DATA.read_text())["kv_observations"]
TOLERANCE = 0.02
# The model of the catalogue whose dimensions the row is about, and the cache's bytes a number.
SUBJECTS = {
    "kv01": ("kimi-k2-thinking", 2),
    "kv02": ("kimi-k2-thinking", 2),
    "kv03": ("kimi-k2.5", 2),
    "kv04": ("kimi-k2.5", 2),
    "kv07": ("kimi-k2.5", 1),
    "kv08": ("deepseek-r1", 1),
    "kv09": ("deepseek-v3.2", 1),
    "kv15": ("kimi-k2.5", 2),
    "kv16": ("deepseek-v3.2", 2),
    "kv17": ("glm-4.7", 2),
}
# The MLX engine of these rows keeps every head's own keys and values, in steps of 256 tokens.
EXPANDED = {"kv15", "kv16", "kv17"}


def predicted(row: dict[str, Any]) -> float:
    name, dtype_bytes = SUBJECTS[row["id"]]
    shape = load_catalogue().model(name).architecture
    if row["unit"] == "tokens":
        room = float(re.search(r"([\d.]+) GiB", row["flags"]).group(1)) * GIB
        return room / model_bytes.count_kv_bytes_per_token(shape, dtype_bytes)
    tokens = int(re.search(r"(\d+) tokens", f"{row['quantity']} {row['flags']}").group(1))
    if row["id"] in EXPANDED:
        steps = -(-tokens // 256) * 256
        return steps * model_bytes.count_expanded_kv_bytes_per_token(shape, dtype_bytes) / GIB
    return tokens * model_bytes.count_kv_bytes_per_token(shape, dtype_bytes) / GIB


def test_every_observation_is_held() -> None:
    assert {row["id"] for row in ROWS} == set(SUBJECTS)
    assert all(row["source"] for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_cache(row: dict[str, Any]) -> None:
    if row["id"] == "kv04":  # what the user set, rounded down to a power of two: a lower bound
        assert predicted(row) >= row["observed"]
        return
    assert predicted(row) == pytest.approx(row["observed"], rel=TOLERANCE)


@pytest.mark.parametrize(
    ("model", "ranks", "seen_gib"),
    [
        ("kimi-k2.5", 8, 72.02),  # 8x H100, vLLM 0.15.0: the log of reference 004
        ("kimi-k2-thinking", 8, 71.15),  # 8x H200, vLLM 0.25.1 with expert parallelism
    ],
)
def test_weights_of_each_gpu(model: str, ranks: int, seen_gib: float) -> None:
    shape = load_catalogue().model(model).architecture
    counted = model_bytes.count_rank_bytes(shape, "int4", ranks) / GIB
    assert counted == pytest.approx(seen_gib, rel=TOLERANCE)


def test_what_kt_keeps_beside_the_experts() -> None:
    """24.34 GB beside the experts and 1.486 GB for each expert on the GPU (kt issue 1817)."""
    shape = load_catalogue().model("kimi-k2.5").architecture
    assert model_bytes.count_plain_bytes(shape, "int4") / 1e9 == pytest.approx(24.34, rel=TOLERANCE)
    assert model_bytes.count_expert_bytes(shape, "int4") / 1e9 == pytest.approx(
        1.486, rel=TOLERANCE
    )


@pytest.mark.parametrize(
    ("weights_format", "gb", "tolerance"),
    [("int4", 595.1, 0.001), ("nvfp4", 590.7, 0.001), ("mxfp4", 557, TOLERANCE)],
)
def test_checkpoints_of_k25(weights_format: str, gb: float, tolerance: float) -> None:
    shape = load_catalogue().model("kimi-k2.5").architecture
    counted = model_bytes.count_checkpoint_bytes(shape, weights_format) / 1e9
    assert counted == pytest.approx(gb, rel=tolerance)
