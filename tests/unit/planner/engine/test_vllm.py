"""vLLM's flags and environment, seen in the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plan_inputs import (
    HUGE,
    argument,
    gpu_facts,
    hybrid_facts,
    plan,
)

from kimi_prov.catalog.loader import load_catalogue

GPU_CATALOGUE = Path(__file__).resolve().parents[3] / "gpu" / "catalogue"


def test_workers_of_each_instance_are_bound_to_the_nodes_of_its_own_cards() -> None:
    facts = gpu_facts(16)
    for card in facts["gpus"]:
        card["numa_node"] = card["index"] // 8
    document = plan(facts, engine_version="0.32.0", **HUGE)
    for index, instance in enumerate(document["instances"]):
        place = instance["argv"].index("--numa-bind-nodes")
        assert instance["argv"][place + 1 : place + 9] == [str(index)] * 8
        assert instance["gpu_nodes"] == [index] * 8


def test_workers_are_bound_by_the_engine_from_032_and_not_from_outside() -> None:
    old, new = (plan(gpu_facts(), engine_version=one, **HUGE) for one in ("0.19.1", "0.32.0"))
    assert "--numa-bind" not in old["instances"][0]["argv"]
    assert old["instances"][0]["numactl"] == ["numactl", "--interleave=all"]
    assert "--numa-bind" in new["instances"][0]["argv"]
    assert new["instances"][0]["numactl"] == []


@pytest.mark.parametrize("version", ["0.15.0", "0.19.1", "0.25.1", "0.32.0", "0.33.0"])
def test_every_flag_of_the_plan_is_one_that_the_version_takes(version: str) -> None:
    document = plan(gpu_facts(), engine_version=version, concurrency=64, **HUGE)
    flags = [part for part in document["instances"][0]["argv"] if part.startswith("--")]
    states = {flag: load_catalogue().flag("vllm", version, flag).status for flag in flags}
    assert {flag for flag, state in states.items() if state in ("rejected", "fails")} == set()


@pytest.mark.parametrize("facts", [gpu_facts(), hybrid_facts()], ids=["gpus", "hybrid"])
def test_an_engine_on_gpus_finds_a_compiler(facts: dict[str, Any]) -> None:
    """Triton builds a C module when the engine starts; a bare server has no gcc, no headers."""
    assert {"g++", "python3-dev"} <= set(plan(facts, **HUGE)["packages"])


def test_headers_are_those_of_the_engines_own_python() -> None:
    facts = hybrid_facts()
    other = {"path": "/usr/bin/python3.12", "version": "3.12"}
    facts["python"] |= {"path": "/usr/bin/python3", "version": "3.13.5", "others": [other]}
    # uv's own environment is made by the system's Python.
    wanted = {"python3.12-dev", "python3.12-venv", "python3-venv"}
    assert wanted <= set(plan(facts, **HUGE)["packages"])


def test_what_has_vllm_compile_with_nvcc_is_off() -> None:
    document = plan(gpu_facts(), engine_version="0.32.0", **HUGE)
    environment = document["instances"][0]["env"]
    for name in ("USE_FLASHINFER_SAMPLER", "ALLREDUCE_USE_FLASHINFER", "USE_DEEP_GEMM"):
        assert environment[f"VLLM_{name}"] == "0"
    assert argument(document, "--moe-backend") == "marlin"
    amd = gpu_facts(mib=196592)
    for card in amd["gpus"]:
        card |= {"vendor": "amd", "model": "AMD Instinct MI300X", "compute_capability": None}
    for facts, version in ((gpu_facts(), "0.25.1"), (amd, "0.32.0")):
        other = plan(facts, engine_version=version, **HUGE)
        assert "--moe-backend" not in other["instances"][0]["argv"]
    blackwell = gpu_facts(mib=183359)
    for card in blackwell["gpus"]:
        card |= {"model": "NVIDIA B200", "compute_capability": "10.0"}
    assert argument(plan(blackwell, **HUGE), "--attention-backend") == "CUTLASS_MLA"
    assert "--attention-backend" not in document["instances"][0]["argv"]


def test_a_vision_tower_is_whole_on_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the cut models by which `make gpu` tries that, one sees."""
    monkeypatch.setenv("KIMI_PROV_CATALOG", str(GPU_CATALOGUE))
    settings = {"engine_version": "0.25.1", "context": 4096, "concurrency": 8}
    blind, seeing = (
        plan(gpu_facts(2, mib=81559), model=model, **settings)
        for model in ("kimi-k2-cut", "kimi-k2.5-cut")
    )
    assert argument(seeing, "--tensor-parallel-size") == "2"
    assert argument(seeing, "--mm-encoder-tp-mode") == "data"
    assert "--mm-encoder-tp-mode" not in blind["instances"][0]["argv"]
    # Each card has all of the tower's 90,156,320 weights, of two bytes.
    held = [document["memory"]["weights_bytes_per_gpu"] for document in (blind, seeing)]
    assert held[1] - held[0] == 2 * 90_156_320
