"""What a plan says of parts that it had to assume: an unknown processor, a chip's shared memory."""

from __future__ import annotations

import pytest
from plan_inputs import HUGE, blocked_by, found, gpu_facts, hybrid_facts, metal_facts, plan


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (None, "it hides its model"),
        ("Intel(R) Xeon(R) Processor", "it hides its model"),
        ("QEMU Virtual CPU version 2.5+", "it hides its model"),
        ("AMD EPYC-Milan Processor", "it hides its model"),
        ("AMD EPYC 4124P 4-Core Processor", "the catalogue has no row for it"),
        ("Intel(R) Xeon(R) CPU E5-1620 v2 @ 3.70GHz", "the catalogue has no row for it"),
    ],
)
def test_a_processor_that_hides_its_name_is_told_from_one_without_a_row(
    model: str | None, reason: str
) -> None:
    facts = hybrid_facts()
    facts["cpu"]["model"] = model
    (row,) = found(plan(facts, **HUGE), "cpu.identity")
    assert row["title"] == f"Figures for the processor are assumed: {reason}"
    assert row["observed"] == (model or "unknown")


def chip(name: str, size: int | None, arch: str) -> dict[str, object]:
    facts = metal_facts(nodes=1, gib=119, cores=20)
    card = gpu_facts(count=1)["gpus"][0]
    facts["gpus"] = [card | {"model": name, "memory_total_bytes": size}]
    facts["host"]["arch"] = arch
    return facts


@pytest.mark.parametrize(
    ("name", "size", "arch"),
    [
        ("NVIDIA GB10", None, "aarch64"),
        ("NVIDIA GB10", 119 << 30, "aarch64"),
        ("NVIDIA Thor", None, "aarch64"),
        # nvidia-smi of any Tegra shows no memory (whichllm#165).
        ("Orin (nvgpu)", None, "aarch64"),
        ("AMD Radeon 8060S Graphics", 96 << 30, "x86_64"),
    ],
)
def test_memory_that_processor_and_gpu_share_is_counted_once(
    name: str, size: int | None, arch: str
) -> None:
    document = plan(chip(name, size, arch), **HUGE)
    (row,) = found(document, "gpu.shared_memory")
    assert "118.8 GiB that processor and GPU share" in row["observed"]
    assert "554.3 GiB of weights of kimi-k2.5" in row["required"]
    assert "memory.host" in blocked_by(document)
    assert not found(document, "gpu.memory")


def test_a_card_of_its_own_shares_nothing() -> None:
    assert not found(plan(gpu_facts(), **HUGE), "gpu.shared_memory")
    grace = gpu_facts(count=1, mib=97871)
    grace["gpus"][0]["model"] = "NVIDIA GH200 480GB"
    grace["host"]["arch"] = "aarch64"
    assert not found(plan(grace, **HUGE), "gpu.shared_memory")


@pytest.mark.parametrize(
    ("settings", "severities"),
    [
        ({"model": "deepseek-ai/DeepSeek-V3.1"}, ["warning"]),
        ({"model": "deepseek-v3"}, ["warning"]),
        ({"model": "deepseek-r1"}, []),
        (
            {
                "model": "deepseek-v3.1",
                "weights_source": f"hf://deepseek-ai/DeepSeek-V3.1@{'a' * 40}",
            },
            [],
        ),
    ],
)
def test_another_model_of_the_same_shape_is_said_where_its_weights_are_not_named(
    settings: dict[str, str | None], severities: list[str]
) -> None:
    rows = found(plan(gpu_facts(), **{"weights_source": None} | settings), "weights.sibling")
    assert [row["severity"] for row in rows] == severities
    assert all("deepseek-r1" in row["title"] for row in rows)
