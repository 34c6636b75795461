"""Plans for machines with GPUs: recorded ones, quotes, hybrids; and none ends in a traceback."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import closed_form
import pytest
from plan_inputs import (
    HUGE,
    SHEETS,
    argument,
    blocked_by,
    found,
    gpu_facts,
    hybrid_facts,
    lab_facts,
    plan,
    quoted,
)

from kimi_prov.facts import recording
from kimi_prov.planner.memory import gpu, hybrid
from kimi_prov.planner.settings.flag_names import NUMBERS

GIB = 1 << 30
ROOT = Path(__file__).resolve().parents[4]
RECORDINGS = ROOT / "tests" / "data" / "recordings"
FLAGS = [
    *["tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "max-num-seqs"],
    *["max-model-len", "gpu-memory-utilization", "kv-cache-dtype", "max-num-batched-tokens"],
    *["kt-cpuinfer", "kt-threadpool-count", "kt-numa-nodes", "kt-num-gpu-experts", "load-format"],
    *["decode-context-parallel-size", "enable-expert-parallel", "speculative-config"],
]
VALUES = [0, -1, 1, 3, 8, 10**9, 0.5, "8", "auto", "x", True, False, None, [], [0, 1], {"a": 1}]


def recorded(name: str) -> dict[str, Any]:
    return recording.read_recording(RECORDINGS / name)


def test_eight_recorded_h200_serve_kimi_k25() -> None:
    document = plan(recorded("h200-x8"), **HUGE)
    assert blocked_by(document) == set()
    passed = {row["id"] for row in document["findings"] if row["severity"] == "pass"}
    assert {"driver.branch", "gpu.nvlink", "gpu.memory", "driver.fabric_manager"} <= passed
    assert document["engine"]["name"] == "vllm"
    assert document["parallel"]["tensor"] == 8
    assert document["model"]["context"] == 262144


def test_what_was_measured_there_is_what_is_planned() -> None:
    """vLLM 0.25.1 on that machine: 53.31 GiB of cache, 1,628,992 tokens, with these flags."""
    document = plan(
        recorded("h200-x8"),
        model="kimi-k2-thinking",
        weights_source=None,
        concurrency=64,
        context=65536,
        kv_dtype="fp8",
        engine_version="0.25.1",
        engine_args={"gpu-memory-utilization": 0.92, "enable-expert-parallel": True},
    )
    memory = document["memory"]
    assert memory["weights_bytes_per_gpu"] / GIB == pytest.approx(71.15, rel=0.02)
    assert memory["kv_available_bytes_per_gpu"] / GIB == pytest.approx(53.31, rel=0.02)
    assert memory["kv_tokens_max"] == pytest.approx(1_628_992, rel=0.02)
    assert "--enable-expert-parallel" in document["instances"][0]["argv"]
    assert argument(document, "--kv-cache-dtype") == "fp8"


def test_eighty_gigabytes_a_card_leave_a_short_context() -> None:
    """Reference 004: 0.64 GiB of cache at 0.95; its 16 bit held 9.8 thousand tokens."""
    facts = gpu_facts(8, 81559)
    alone = {"decode-context-parallel-size": 1, "tensor-parallel-size": 8}
    document = plan(facts, kv_dtype="bf16", engine_args=alone, **HUGE)
    assert blocked_by(document) == set()
    assert argument(document, "--gpu-memory-utilization") == "0.95"
    assert document["memory"]["kv_available_bytes_per_gpu"] / GIB == pytest.approx(0.64, abs=0.1)
    assert 8192 <= document["model"]["context"] <= 16384
    long = plan(facts, kv_dtype="bf16", context=16384, engine_args=alone, **HUGE)
    assert "context.memory" in blocked_by(long)
    assert "kimi_kv_dtype to fp8" in found(long, "context.memory")[0]["fix"]
    eight = plan(facts, context=18000, engine_args=alone, **HUGE)
    assert eight["model"]["kv_dtype"] == "fp8"


@pytest.mark.parametrize(
    ("model", "mib", "version", "flags", "concurrency", "seen_gib"),
    [
        # Reference 004: weights 72.02, cache 0.64 of 79.18 GiB.
        ("kimi-k2.5", 81559, "0.15.0", {"gpu-memory-utilization": 0.95}, 64, 0.64),
        # Reference 001: passes of 4,096 tokens, one request.
        (
            "kimi-k2-thinking",
            81559,
            "0.11.1",
            {"gpu-memory-utilization": 0.95, "max-num-batched-tokens": 4096},
            1,
            0.86,
        ),
        # Run for this project on 8x H200.
        ("kimi-k2-thinking", 143771, "0.25.1", {"gpu-memory-utilization": 0.92}, 64, 53.31),
    ],
)
def test_the_cache_that_engines_were_seen_to_have_is_planned(
    model: str, mib: int, version: str, flags: dict[str, Any], concurrency: int, seen_gib: float
) -> None:
    args = {"max-num-batched-tokens": 8192, "tensor-parallel-size": 8, **flags}
    args["max-num-seqs"] = concurrency
    settings = {"model": model, "weights_source": None, "kv_dtype": "bf16", "engine": "vllm"}
    document = plan(
        gpu_facts(8, mib),
        engine_version=version,
        engine_args=args,
        concurrency=concurrency,
        **settings,
    )
    memory = document["memory"]
    # A tenth of a GiB is the thousandth part of what is shared out.
    assert memory["kv_available_bytes_per_gpu"] / GIB == pytest.approx(seen_gib, abs=0.1)


def test_working_memory_follows_passes_and_requests() -> None:
    def overhead(**settings: Any) -> float:
        return plan(gpu_facts(), **settings, **HUGE)["memory"]["overhead_bytes_per_gpu"] / GIB

    usual = overhead(concurrency=16)
    # 1,024 requests x 163,840 words x 32 bytes: what ended reference 004's start (trouble 7).
    assert overhead(concurrency=1024) - usual == pytest.approx(1008 * 163840 * 32 / GIB, rel=0.01)
    wide = overhead(concurrency=16, engine_args={"max-num-batched-tokens": 16384})
    # 8 experts and 6 rows of 7,168 numbers of 16 bit for each token.
    assert wide - usual == pytest.approx(8192 * 14 * 7168 * 2 / GIB, rel=0.01)


def test_full_cards_take_fewer_requests_at_once() -> None:
    document = plan(gpu_facts(8, 81559), concurrency=1024, **HUGE)
    assert int(argument(document, "--max-num-seqs")) <= 64
    assert "the others wait" in found(document, "engine.sequences")[0]["required"]


@pytest.mark.parametrize("sheet", sorted(path.stem for path in SHEETS.glob("*.yml")))
@pytest.mark.parametrize("model", ["kimi-k2.5", "kimi-k3", "kimi-k2-instruct"])
def test_every_shipped_sheet_gives_a_plan_of_its_schema(sheet: str, model: str) -> None:
    document = plan(quoted(sheet), **(HUGE | {"model": model}))
    closed_form.validate(document, "plan")


@pytest.mark.parametrize(
    ("sheet", "measured"), [("reference-004", 112.0), ("quote-8x-h200", 121.0)]
)
def test_speeds_of_one_request_hold_what_was_measured(sheet: str, measured: float) -> None:
    """112 tok/s on 8x H100; 8.26 ms a token on 8x H200 (1K prompts, dummy weights)."""
    speed = plan(quoted(sheet), **HUGE)["throughput"]["single_tok_s"]
    assert speed["low"] <= measured <= speed["high"]


def test_what_does_not_fit_has_no_speed() -> None:
    document = plan(recorded("h200-x8"), **(HUGE | {"model": "kimi-k3"}))
    assert {"gpu.memory", "context.memory"} <= blocked_by(document)
    assert document["throughput"]["decode_tok_s"]["expected"] is None


def taken(flag: str) -> list[Any]:
    """The values that are not refused for what memory is counted with."""
    number = NUMBERS.get(flag)
    return [v for v in VALUES if v is None or number is None or number.read(v) is not None]


@pytest.mark.parametrize("seed", range(60))
def test_no_flag_of_the_inventory_ends_in_a_traceback(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    facts = chance.choice([gpu_facts(), hybrid_facts(), lab_facts()])
    args = {flag: chance.choice(taken(flag)) for flag in chance.sample(FLAGS, 4)}
    document = plan(facts, engine_args=args, **chance.choice([{}, HUGE]))
    closed_form.validate(document, "plan")


@pytest.mark.parametrize("facts", [gpu_facts(), gpu_facts(16), hybrid_facts()])
def test_a_budget_of_the_gpus_is_computed_once(
    facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others cost, or would hold with other flags, is computed for them alone."""
    counted: list[str] = []

    def counting(name: str, real: Any, host: Any, settings: Any, *rest: Any) -> Any:
        if len(host.gpu_bytes) == len(facts["gpus"]) and not settings.engine_args:
            counted.append(f"{name} {host.gpu_bytes[0]}")
        return real(host, settings, *rest)

    for module, name in ((gpu, "list_budgets"), (hybrid, "list_budgets")):
        spy = functools.partial(counting, module.__name__, getattr(module, name))
        monkeypatch.setattr(module, name, spy)
    plan(facts, **HUGE)
    assert counted
    assert sorted(set(counted)) == sorted(counted)
