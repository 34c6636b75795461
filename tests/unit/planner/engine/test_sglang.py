"""The flags and environment of KTransformers, seen in the plan."""

from __future__ import annotations

from plan_inputs import (
    HUGE,
    argument,
    blocked_by,
    found,
    hybrid_facts,
    plan,
)

from kimi_prov.catalog.loader import load_catalogue


def test_the_flags_of_a_hybrid_are_those_of_sglang_kt() -> None:
    document = plan(hybrid_facts(), **HUGE)
    assert document["engine"]["name"] == "ktransformers"
    flags = [part for part in document["instances"][0]["argv"] if part.startswith("--")]
    states = {flag: load_catalogue().flag("ktransformers", "0.7.2", flag).status for flag in flags}
    assert {flag for flag, state in states.items() if state != "accepted"} <= {
        "--trust-remote-code"
    }


def test_sglang_gets_a_compiler_and_leaves_the_models_configuration() -> None:
    """Without CUDA_HOME it ends when it is imported on Hopper, without ninja when it compiles."""
    document = plan(hybrid_facts(), **HUGE)
    environment, own = document["instances"][0]["env"], document["engine"]["env_dir"]
    # Not through the link to the engine in use, which another version's installation moves.
    assert environment["CUDA_HOME"] == f"{own}/cuda"
    assert environment["LD_LIBRARY_PATH"] == f"{own}/cuda/lib64"
    assert environment["PATH"].split(":")[0] == f"{own}/bin"
    # Else K2-Thinking gets DeepSeek V4's, for the name of its architecture.
    assert environment["SGLANG_APPLY_CONFIG_BACKUP"] == "none"


def test_int4_experts_do_not_go_over_the_gpu_layer_by_layer() -> None:
    """sglang-kt 0.7.2 ends at the first prompt that does: seen on an H200."""
    flag = "--kt-gpu-prefill-token-threshold"
    own = plan(hybrid_facts(), **HUGE)
    asked = plan(hybrid_facts(), engine_args={flag[2:]: 400}, **HUGE)
    for document in (own, asked):
        assert flag not in document["instances"][0]["argv"]
    assert blocked_by(asked) == set()
    (said,) = found(asked, "engine.flag_left_out")
    assert flag in said["title"]
    assert found(own, "engine.flag_left_out") == []
    assert blocked_by(plan(hybrid_facts(), engine_args={flag[2:]: 0}, **HUGE)) == set()
    other = plan(hybrid_facts(), **HUGE | {"model": "kimi-k2-instruct"})
    assert flag in other["instances"][0]["argv"]
    # The others wait for each chunk, and a watchdog ends the server where one takes too long.
    assert argument(own, "--chunked-prefill-size") == "4096"
    assert int(argument(own, "--watchdog-timeout")) > 300
