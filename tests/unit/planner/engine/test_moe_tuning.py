"""The tuner of the experts' kernels: what it is run with, and where it would be of no use."""

from __future__ import annotations

from plan_inputs import HUGE, gpu_facts, lab_facts, plan

# Its tuner is pinned.
TUNED = {"engine_version": "0.19.1", **HUGE}


def test_int4_runs_in_kernels_that_read_no_table() -> None:
    tuning = plan(gpu_facts(), **TUNED)["moe_tuning"]
    assert tuning["read"] is False
    assert "Marlin" in tuning["reason"]


def test_the_tuner_gets_what_its_own_parser_takes() -> None:
    """Reference 002 gives it --dtype bfloat16, which is none of its choices, and no prefix."""
    document = plan(gpu_facts(), engine_args={"enable-expert-parallel": True}, **TUNED)
    argv = document["moe_tuning"]["argv"]
    assert argv[argv.index("--dtype") + 1] in ("auto", "fp8_w8a8", "int8_w8a16", "int4_w4a16")
    assert argv[argv.index("--model-prefix") + 1] == "text_config"
    assert argv[argv.index("--tp-size") + 1] == "8"
    assert "--enable-expert-parallel" in argv
    folder = document["instances"][0]["env"]["VLLM_TUNED_CONFIG_FOLDER"]
    assert argv[argv.index("--save-dir") + 1] == folder
    assert document["moe_tuning"]["url"].endswith("/v0.19.1/benchmarks/kernels/benchmark_moe.py")


def test_fp8_weights_are_worth_it() -> None:
    given = {"model": "kimi-k2-instruct", "weights_source": None, "engine_version": "0.19.1"}
    tuning = plan(gpu_facts(16), **given)["moe_tuning"]
    assert tuning["read"] is True
    assert tuning["argv"][tuning["argv"].index("--dtype") + 1] == "fp8_w8a8"
    assert "--model-prefix" not in tuning["argv"]


def test_without_gpus_or_a_pinned_tuner_there_is_none() -> None:
    assert plan(lab_facts())["moe_tuning"] is None
    assert plan(gpu_facts(), engine_version="0.25.1", **HUGE)["moe_tuning"] is None
