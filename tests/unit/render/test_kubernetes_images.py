"""The engine's image: which a pod needs, and what people type instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kubernetes_render import IMAGE, render

from kimi_prov.render.kubernetes import images

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("image", "stock"),
    [
        ("vllm/vllm-openai:v0.19.1", True),
        ("docker.io/vllm/vllm-openai@sha256:" + 64 * "0", True),
        ("mirror.example.com:5000/proxy/lmsysorg/sglang:v0.5.9", True),
        ("approachingai/ktransformers:0.7", True),
        ("registry.example.com/kimi:0.33.0", False),
        ("registry.example.com/team/vllm:1", False),
        ("kimi", False),
    ],
)
def test_images_of_an_engines_makers_are_known_by_name(image: str, stock: bool) -> None:
    assert images.is_stock(image) is stock


def test_a_published_image_is_refused_by_what_it_lacks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    variables = "kimi_kubernetes_image: vllm/vllm-openai:v0.33.0\n"
    assert render("reference-002", tmp_path / "out", variables=variables) == 3
    told = " ".join(capfd.readouterr().err.split())
    assert "(kubernetes.stock_image)" in told
    assert "/opt/kimi/bin/kimi-pod" in told
    assert "kimi-prov image vllm-cuda-" in told
    assert not (tmp_path / "out").exists()


def test_without_an_image_the_error_says_how_one_is_made(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert render("reference-002", tmp_path / "out", variables="kimi_web_ui: true\n") == 2
    assert "kimi-prov image vllm-cuda" in " ".join(capfd.readouterr().err.split())


def test_the_first_lines_of_the_page_are_what_nothing_starts_without(tmp_path: Path) -> None:
    assert render("reference-002", tmp_path / "out", variables=IMAGE) == 0
    first = (tmp_path / "out" / "README.md").read_text().splitlines()[:8]
    text = "\n".join(first)
    assert "registry.example.com/kimi" in text
    assert "Secrets" in text
    readme = (tmp_path / "out" / "README.md").read_text()
    assert readme.index("kimi-prov image vllm-cuda-") < readme.index("kubectl create namespace")
    assert readme.index("kubectl create secret") < readme.index("kimi-prov apply")
