"""Bytes are counted from the architecture and meet what was published and observed."""

from __future__ import annotations

import pytest

from kimi_prov.catalog import model_bytes
from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.lab.model import make_model

GIB = 1 << 30
K2 = load_catalogue().model("kimi-k2-thinking").architecture
K25 = load_catalogue().model("kimi-k2.5").architecture


def test_parameters_of_kimi_k2() -> None:
    assert model_bytes.count_total_params(K2) == 1_026_408_232_448
    assert model_bytes.count_routed_params(K2) == 1_014_686_023_680


@pytest.mark.parametrize(
    ("shape", "weights_format", "published"),
    [
        (K2, "int4", 594_205_305_856),
        (K25, "int4", 595_147_593_696),
        (K2, "bf16", 2_052_816_464_896),
        (K2, "fp8", 1_029_173_072_078),
    ],
)
def test_bytes_of_a_checkpoint(shape: object, weights_format: str, published: int) -> None:
    counted = model_bytes.count_checkpoint_bytes(shape, weights_format)
    assert counted == pytest.approx(published, rel=1e-5)


@pytest.mark.parametrize(
    ("tokens", "dtype_bytes", "observed_gib"),
    [(32768, 2, 2.14), (16384, 2, 1.07), (262144, 1, 8.58)],
)
def test_cache_as_vllm_logged_it(tokens: int, dtype_bytes: int, observed_gib: float) -> None:
    counted = tokens * model_bytes.count_kv_bytes_per_token(K2, dtype_bytes) / GIB
    assert counted == pytest.approx(observed_gib, rel=0.02)


def test_the_lab_model_is_as_large_as_counted(tmp_path: object) -> None:
    folder = make_model(tmp_path / "model")
    size = sum(p.stat().st_size for p in folder.iterdir() if p.name != "kimi-manifest.json")
    model = load_catalogue().model("kimi-k2-lab")
    counted = model_bytes.count_checkpoint_bytes(model.architecture, "bf16") + model.other_bytes
    assert counted == pytest.approx(size, rel=0.02)
