"""An operator's flag wins over the plan: memory, the plan's context and the command line agree."""

from __future__ import annotations

from typing import Any

import pytest
from plan_inputs import (
    HUGE,
    argument,
    blocked_by,
    found,
    gpu_facts,
    hybrid_facts,
    lab_facts,
    metal_facts,
    plan,
)

from kimi_prov.errors import ExitCode, UserError

KT = HUGE | {"engine": "ktransformers"}


def hybrid(**settings: Any) -> dict[str, Any]:
    return plan(hybrid_facts(), **KT | settings)


@pytest.mark.parametrize(
    ("facts", "settings", "flag"),
    [
        (hybrid_facts(), KT, "context-length"),
        (gpu_facts(), HUGE | {"engine": "vllm"}, "max-model-len"),
    ],
    ids=["ktransformers", "vllm"],
)
def test_the_engines_own_flag_for_the_context_wins_and_what_contradicts_it_is_named(
    facts: dict[str, Any], settings: dict[str, Any], flag: str
) -> None:
    document = plan(facts, context=65536, engine_args={flag: 131072}, **settings)
    assert argument(document, f"--{flag}") == "131072"
    assert document["model"]["context"] == 131072
    assert document["memory"]["kv_tokens_max"] >= 131072
    (said,) = found(document, "engine_args.override")
    assert said["severity"] == "warning"
    assert "kimi_context: 65536" in said["observed"]
    assert f"{flag}: 131072" in said["observed"]
    same = plan(facts, context=131072, engine_args={flag: 131072}, **settings)
    assert same["memory"] == document["memory"]
    assert [row["severity"] for row in found(same, "engine_args.override")] == ["info"]


def test_the_context_as_text_counts_as_the_number() -> None:
    document = hybrid(context=65536, engine_args={"context-length": "131072"})
    assert document["model"]["context"] == 131072


def test_a_context_flag_that_does_not_fit_is_refused_by_its_own_name() -> None:
    document = hybrid(engine_args={"context-length": 262144 * 2})
    assert "context.model" in blocked_by(document)
    (said,) = found(document, "context.model")
    assert "context-length" in said["observed"]
    assert "kimi_context" not in said["observed"] + said["fix"]


@pytest.mark.parametrize(
    ("facts", "settings", "given", "wanted"),
    [
        (hybrid_facts(), KT, {"max-model-len": 8192}, "context-length"),
        (hybrid_facts(), KT, {"max-num-seqs": 1}, "max-running-requests"),
        (gpu_facts(), HUGE, {"context-length": 8192}, "max-model-len"),
        (lab_facts(), {}, {"chunked-prefill-size": 512}, "max-num-batched-tokens"),
    ],
)
def test_another_engines_flag_changes_no_size_and_the_right_one_is_named(
    facts: dict[str, Any], settings: dict[str, Any], given: dict[str, Any], wanted: str
) -> None:
    document, plain = plan(facts, engine_args=given, **settings), plan(facts, **settings)
    assert document["memory"] == plain["memory"]
    assert document["model"]["context"] == plain["model"]["context"]
    (said,) = found(document, "engine.flag")
    assert said["severity"] == "blocker"
    assert wanted in said["fix"]


def test_requests_cache_and_its_format_are_those_of_sglangs_flags() -> None:
    few = hybrid(context=32768, engine_args={"max-running-requests": 1})
    many = hybrid(context=32768, concurrency=1)
    assert few["memory"]["kv_tokens_max"] == many["memory"]["kv_tokens_max"] == 32768
    assert argument(few, "--max-running-requests") == "1"
    eight = hybrid(engine_args={"kv-cache-dtype": "fp8_e4m3"})
    assert eight["model"]["kv_dtype"] == "fp8"
    assert (
        eight["memory"]["kv_bytes_per_token"]
        == hybrid(kv_dtype="fp8")["memory"]["kv_bytes_per_token"]
    )
    tokens = hybrid(context=32768, engine_args={"max-total-tokens": 40000})
    assert tokens["memory"]["kv_tokens_max"] == 40000
    assert argument(tokens, "--max-total-tokens") == "40000"
    less = hybrid(engine_args={"mem-fraction-static": 0.5})["memory"]
    assert (
        less["weights_bytes_per_gpu"] + less["kv_available_bytes_per_gpu"] <= less["gpu_bytes"] / 2
    )
    none = hybrid(engine_args={"kt-num-gpu-experts": 0})
    assert none["memory"]["gpu_experts"] == 0


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("gpu-memory-utilization", 95),
        ("mem-fraction-static", 0),
        ("max-model-len", "abc"),
        ("context-length", 0),
        ("max-num-seqs", -3),
        ("max-running-requests", 1.5),
        ("max_num_batched_tokens", [2048]),
        ("chunked-prefill-size", -1),
        ("tensor-parallel-size", True),
        ("pipeline-parallel-size", "2x"),
        ("data-parallel-size", 0),
        ("decode-context-parallel-size", {}),
        ("max-total-tokens", "32k"),
        ("kt-num-gpu-experts", -1),
        ("kt-cpuinfer", 0),
        ("kt-threadpool-count", "two"),
        ("kv-offloading-size", "all"),
        ("eplb-config", {"num_redundant_experts": "many"}),
    ],
)
def test_what_memory_is_counted_with_is_a_number_or_refused(flag: str, value: object) -> None:
    """Else the plan would count with its own number, and the engine start with another."""
    with pytest.raises(UserError) as caught:
        plan(gpu_facts(), engine_args={flag: value}, **HUGE)
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    assert f"kimi_engine_args: expected {flag.replace('_', '-')} to be " in caught.value.message


@pytest.mark.parametrize(
    ("flag", "text", "number"),
    [
        ("gpu-memory-utilization", "0.8", 0.8),
        ("max-num-seqs", "4", 4),
        ("kv-offloading-size", "64", 64),
        ("eplb-config", {"num_redundant_experts": "8"}, {"num_redundant_experts": 8}),
    ],
)
def test_a_number_as_text_counts_as_the_number(flag: str, text: object, number: object) -> None:
    """Ansible's templates make text of it, and the engine reads that as the number."""
    beside = {"enable-eplb": True, "enable-expert-parallel": True}
    wishes = {"model": "kimi-k2-instruct", "weights_source": None, "engine": "vllm"}

    def memory(**more: object) -> object:
        return plan(gpu_facts(), engine_args=beside | more, **wishes)["memory"]

    assert memory() != memory(**{flag: text}) == memory(**{flag: number})


def test_null_takes_a_number_away_and_other_flags_are_the_engines_own() -> None:
    args = {"max-num-seqs": None, "eplb-config": {"window_size": "x"}, "some-flag": "abc"}
    document = plan(gpu_facts(), engine_args=args, **HUGE)
    assert "--max-num-seqs" not in document["instances"][0]["argv"]
    assert argument(document, "--some-flag") == "abc"


def test_without_a_gpu_the_cache_is_for_the_requests_that_the_flag_names() -> None:
    large = metal_facts(gib=1024, cores=96)
    flag, variable, many = (
        plan(large, context=32768, **HUGE, **more)["memory"]
        for more in ({"engine_args": {"max-num-seqs": 1}}, {"concurrency": 1}, {})
    )
    assert flag == variable
    assert flag["kv_tokens_max"] < many["kv_tokens_max"]


def test_a_contradicted_cache_format_is_a_warning() -> None:
    document = plan(gpu_facts(), kv_dtype="bf16", engine_args={"kv-cache-dtype": "fp8"}, **HUGE)
    assert document["model"]["kv_dtype"] == "fp8"
    (said,) = found(document, "engine_args.override")
    assert said["severity"] == "warning"
    assert "kimi_kv_dtype" in said["title"]


def test_host_memory_of_the_servers_processes_is_what_was_seen_with_its_margin() -> None:
    """4.3 GB were seen, twice that is counted, and a layer that is loaded: 9.5 GB of INT4."""
    parts = {row["kind"]: row["bytes"] for row in hybrid()["memory"]["host_parts"]}
    assert 4.3e9 < parts["overhead"] - 9.51e9 < 2.2 * 4.3e9
    fp8 = plan(hybrid_facts(), model="kimi-k2-instruct", weights_source=None)["memory"]
    (staged,) = [row["bytes"] for row in fp8["host_parts"] if row["kind"] == "overhead"]
    # 384 experts of 3 x 7168 x 2048, a byte each.
    assert staged > 384 * 3 * 7168 * 2048 + 4.3e9
