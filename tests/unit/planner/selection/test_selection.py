"""Which engine, version and Python, seen in the plan."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from plan_inputs import (
    HUGE,
    blocked_by,
    found,
    gpu_facts,
    hybrid_facts,
    plan,
)

from kimi_prov.catalog.loader import load_catalogue

if TYPE_CHECKING:
    from typing import Any

K3 = HUGE | {"model": "kimi-k3"}


def test_what_is_planned_and_not_provisioned_is_a_blocker() -> None:
    document = plan(gpu_facts(), engine_version="0.15.0", **HUGE)
    assert document["engine"]["provisioned"] is False
    assert blocked_by(document) == {"engine.not_provisioned"}
    assert "has a lock" in found(document, "engine.not_provisioned")[0]["fix"]
    assert "engine.not_provisioned" not in blocked_by(plan())


def test_what_costs_most_to_remove_is_named_first() -> None:
    """Who reads one reason alone is told of the memory that is missing, not of systemd."""
    facts = hybrid_facts(gib=125)
    facts["host"]["systemd_running"] = False
    facts["filesystems"][0]["free_bytes"] = 64 << 30
    rows = [row["id"] for row in plan(facts, **HUGE)["findings"] if row["severity"] == "blocker"]
    assert rows.index("memory.host") < rows.index("disk.room") < rows.index("os.systemd")


def test_an_unknown_engine_version_and_format_are_blockers() -> None:
    assert "engine.version" in blocked_by(plan(engine_version="9.9.9"))
    unsourced = plan(weights_format="fp8", weights_source=None)
    assert "weights.format_unpublished" in blocked_by(unsourced)
    assert "engine.no_gpu" in blocked_by(plan(engine="ktransformers"))


def test_a_python_that_the_engine_has_no_wheels_for_is_said() -> None:
    assert not found(plan(hybrid_facts(), **HUGE), "python.engine")
    facts = gpu_facts()
    facts["python"] |= {"path": "/usr/bin/python3", "version": "3.9.2", "others": []}
    assert found(plan(facts, engine_version="0.15.0", **HUGE), "python.engine")


def test_the_engine_is_chosen_with_the_version_and_the_flags_that_it_is_served_with() -> None:
    """Dead flags become today's before memory is counted: the choice and the plan agree."""
    args = {"enable-eplb": True, "num-redundant-experts": 4096}
    document = plan(gpu_facts(), weights_format="nvfp4", engine_args=args, **HUGE)
    assert "gpu.memory" in blocked_by(document)
    assert "do not hold all weights" in document["engine"]["reason"]


def b300() -> dict[str, Any]:
    facts = gpu_facts(mib=275040)
    for card in facts["gpus"]:
        card |= {"model": "NVIDIA B300 SXM6 AC", "compute_capability": "10.3"}
    return facts


def test_the_version_is_one_with_machine_code_for_the_gpus() -> None:
    chosen = plan(b300(), **HUGE)["engine"]
    assert (chosen["version"], chosen["provisioned"]) == ("0.33.0", True)
    old = plan(b300(), engine_version="0.19.1", **HUGE)
    [row] = found(old, "engine.capability")
    assert row["severity"] == "warning"
    assert "10.3" in row["title"]
    assert "kimi_engine_version to auto" in row["fix"]
    fp4 = plan(b300(), engine_version="0.19.1", weights_format="nvfp4", **HUGE)
    assert "engine.capability" in blocked_by(fp4)
    assert not found(plan(gpu_facts(), **HUGE), "engine.capability")


def test_an_older_vllm_is_refused_for_kimi_k3_and_0_33_is_installed() -> None:
    old = plan(b300(), engine_version="0.19.1", **K3)
    assert {"engine.too_old", "engine.capability"} <= blocked_by(old)
    new = plan(b300(), engine_version="0.33.0", **K3)
    assert (new["engine"]["version"], new["engine"]["provisioned"]) == ("0.33.0", True)
    assert not {row for row in blocked_by(new) if row.startswith("engine")}


def test_flashinfer_reduces_on_blackwell_where_the_lock_has_a_compiler() -> None:
    """As the recipe of Kimi K3 has it; an older version and another card keep their own kernels."""
    document = plan(b300(), **K3)
    env = document["instances"][0]["env"]
    assert env["VLLM_ALLREDUCE_USE_FLASHINFER"] == "1"
    assert document["installation"]["cuda_home"] == env["CUDA_HOME"]
    for facts, version in ((b300(), "0.25.1"), (gpu_facts(), "0.33.0")):
        other = plan(facts, engine_version=version, **HUGE)
        assert other["instances"][0]["env"]["VLLM_ALLREDUCE_USE_FLASHINFER"] == "0"
        assert other["installation"]["cuda_home"] is None


def test_a_version_has_a_compiler_where_its_lock_has() -> None:
    catalogue = load_catalogue()
    for row in catalogue.engines:
        names = [row.lock_name(python) for python in row.python]
        texts = [catalogue.lock(name) for name in names if name in catalogue.locks]
        assert all(("\nnvidia-cuda-nvcc==" in text) == row.nvcc for text in texts), row.version


def test_a_compiler_that_is_not_of_its_headers_cuda_is_told_not_to_look() -> None:
    for version in ("0.32.0", "0.33.0"):
        env = plan(b300(), engine_version=version, **HUGE)["instances"][0]["env"]
        lock = load_catalogue().lock(f"vllm-cuda-{version}-cp311.txt")
        nvcc, headers = (
            re.search(rf"^nvidia-cuda-{part}==(\d+\.\d+)", lock, re.MULTILINE)[1]  # type: ignore[index]
            for part in ("nvcc", "runtime")
        )
        assert ("NVCC_APPEND_FLAGS" in env) == (nvcc != headers), version


def test_locks_are_for_x86_64() -> None:
    facts = b300()
    facts["host"]["arch"] = "aarch64"
    document = plan(facts, **HUGE)
    # A blocker before the purchase as well; no advice about AVX goes to an ARM processor.
    assert "cpu.isa" not in blocked_by(document)
    assert not found(document, "engine.arch")
    assert "aarch64 container" in found(document, "engine.not_provisioned")[0]["fix"]
    assert document["driver"]["repository"] is None or "x86_64" not in str(document["driver"])
    assert document["engine"]["provisioned"] is False
    assert "aarch64" in found(document, "engine.not_provisioned")[0]["observed"]
