"""Plans for machines with GPUs: recorded ones, quotes, hybrids; and none ends in a traceback."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from plan_inputs import blocked_by, found, gpu_facts, lab_facts, plan
from test_rules import hybrid_facts, snc

from kimi_prov.catalog.loader import load
from kimi_prov.facts import recording, spec
from kimi_prov.facts.document import schema

GIB = 1 << 30
ROOT = Path(__file__).resolve().parents[3]
RECORDINGS = ROOT / "tests" / "data" / "recordings"
SHEETS = ROOT / "inventories" / "specs"
HUGE = {"model": "kimi-k2.5", "weights_source": None}


def recorded(name: str) -> dict[str, Any]:
    return recording.read(RECORDINGS / name)


def quoted(name: str) -> dict[str, Any]:
    return spec.read(SHEETS / f"{name}.yml", load())


def argument(document: dict[str, Any], flag: str) -> str:
    line = document["instances"][0]["argv"]
    return line[line.index(flag) + 1]


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
    document = plan(facts, kv_dtype="bf16", **HUGE)
    assert blocked_by(document) == set()
    assert argument(document, "--gpu-memory-utilization") == "0.95"
    assert document["memory"]["kv_available_bytes_per_gpu"] / GIB == pytest.approx(0.64, abs=0.1)
    assert 8192 <= document["model"]["context"] <= 16384
    alone = {"decode-context-parallel-size": 1, "tensor-parallel-size": 8}
    long = plan(facts, kv_dtype="bf16", context=16384, engine_args=alone, **HUGE)
    assert "context.memory" in blocked_by(long)
    assert "kimi_kv_dtype to fp8" in found(long, "context.memory")[0]["fix"]
    assert plan(facts, context=18000, **HUGE)["model"]["kv_dtype"] == "fp8"


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
    args = {"max-num-batched-tokens": 8192, **flags}
    wishes = {"model": model, "weights_source": None, "kv_dtype": "bf16", "engine": "vllm"}
    document = plan(
        gpu_facts(8, mib),
        engine_version=version,
        engine_args=args,
        concurrency=concurrency,
        **wishes,
    )
    memory = document["memory"]
    # A tenth of a GiB is the thousandth part of what is shared out.
    assert memory["kv_available_bytes_per_gpu"] / GIB == pytest.approx(seen_gib, abs=0.1)


def test_working_memory_follows_passes_and_requests() -> None:
    def overhead(**wishes: Any) -> float:
        return plan(gpu_facts(), **wishes, **HUGE)["memory"]["overhead_bytes_per_gpu"] / GIB

    usual = overhead(concurrency=16)
    # 1,024 requests x 163,840 words x 32 bytes: what ended reference 004's start (trouble 7).
    assert overhead(concurrency=1024) - usual == pytest.approx(1008 * 163840 * 32 / GIB, rel=0.01)
    wide = overhead(concurrency=16, engine_args={"max-num-batched-tokens": 16384})
    # 8 experts and 6 rows of 7,168 numbers of 16 bit for each token.
    assert wide - usual == pytest.approx(8192 * 14 * 7168 * 2 / GIB, rel=0.01)


def test_full_cards_take_fewer_requests_at_once() -> None:
    document = plan(gpu_facts(8, 81559), concurrency=1024, **HUGE)
    assert argument(document, "--max-num-seqs") == "64"
    assert "the others wait" in found(document, "engine.sequences")[0]["required"]


def test_context_parallelism_holds_a_context_that_one_rank_does_not() -> None:
    document = plan(gpu_facts(8, 81559), context=65536, **HUGE)
    assert blocked_by(document) == set()
    assert document["parallel"]["decode_context"] == 8
    assert argument(document, "--decode-context-parallel-size") == "8"
    assert document["model"]["kv_dtype"] == "bf16"
    assert found(document, "parallel.context")
    short = plan(gpu_facts(8, 81559), **HUGE)
    assert short["parallel"]["decode_context"] == 1


def test_stages_of_layers_use_six_cards() -> None:
    """Four H200 hold no Kimi in INT4 (148 GB each), six do: two ranks in three stages."""
    document = plan(gpu_facts(6), **HUGE)
    assert blocked_by(document) == set()
    assert document["engine"]["name"] == "vllm"
    assert (document["parallel"]["tensor"], document["parallel"]["pipeline"]) == (2, 3)
    assert argument(document, "--pipeline-parallel-size") == "3"
    assert document["instances"][0]["gpus"] == list(range(6))
    assert found(document, "parallel.pipeline")
    # The longest of three runs of 61 layers has 21.
    share = (
        document["memory"]["weights_bytes_per_gpu"]
        / plan(gpu_facts(6), engine="vllm", engine_args={"tensor-parallel-size": 2}, **HUGE)[
            "memory"
        ]["weights_bytes_per_gpu"]
    )
    assert share == pytest.approx(21 / 61, rel=0.001)


def test_sixteen_cards_are_two_instances() -> None:
    document = plan(gpu_facts(16), concurrency=100, **HUGE)
    assert blocked_by(document) == set()
    one, two = document["instances"]
    assert (one["gpus"], two["gpus"]) == (list(range(8)), list(range(8, 16)))
    assert two["env"]["CUDA_VISIBLE_DEVICES"] == "8,9,10,11,12,13,14,15"
    assert (one["port"], two["port"]) == (8001, 8002)
    assert [row["port"] for row in document["proxy"]["backends"]] == [8001, 8002]
    assert argument(document, "--max-num-seqs") == "50"
    assert found(document, "parallel.instances")
    half = plan(gpu_facts(8), concurrency=50, **HUGE)["throughput"]["aggregate_tok_s"]
    both = document["throughput"]["aggregate_tok_s"]
    assert both["expected"] == pytest.approx(2 * half["expected"], rel=0.01)


def test_workers_of_each_instance_are_bound_to_the_nodes_of_its_own_cards() -> None:
    facts = gpu_facts(16)
    for card in facts["gpus"]:
        card["numa_node"] = card["index"] // 8
    document = plan(facts, engine_version="0.32.0", **HUGE)
    for index, instance in enumerate(document["instances"]):
        place = instance["argv"].index("--numa-bind-nodes")
        assert instance["argv"][place + 1 : place + 9] == [str(index)] * 8
        assert instance["gpu_nodes"] == [index] * 8


def test_sixteen_smaller_cards_hold_the_model_together() -> None:
    document = plan(gpu_facts(16, 40960), **HUGE)
    assert document["parallel"]["tensor"] == 16
    assert len(document["instances"]) == 1


def test_data_parallel_attention_is_offered_and_counted() -> None:
    crowd = plan(gpu_facts(), concurrency=256, **HUGE)
    said = found(crowd, "parallel.data")[0]["required"]
    assert "data-parallel-size: 8" in said
    args = {"tensor-parallel-size": 1, "data-parallel-size": 8, "enable-expert-parallel": True}
    spread = plan(gpu_facts(), concurrency=256, engine_args=args, **HUGE)
    assert blocked_by(spread) == set()
    assert str(spread["memory"]["kv_tokens_max"]) in said
    assert spread["memory"]["kv_tokens_max"] > 5 * crowd["memory"]["kv_tokens_max"]
    assert spread["instances"][0]["gpus"] == list(range(8))
    # Each engine core of the eight takes its share of the requests.
    assert argument(spread, "--max-num-seqs") == "32"
    slower = spread["throughput"]["single_tok_s"]["expected"]
    assert slower < crowd["throughput"]["single_tok_s"]["expected"]
    assert not found(plan(gpu_facts(), concurrency=4, **HUGE), "parallel.data")


def test_more_copies_than_cards_are_refused() -> None:
    args = {"tensor-parallel-size": 8, "data-parallel-size": 2}
    document = plan(gpu_facts(), engine_args=args, **HUGE)
    assert "gpu.divisible" in blocked_by(document)
    assert "data-parallel-size 2" in found(document, "gpu.divisible")[0]["observed"]


def test_context_parallelism_divides_the_cache() -> None:
    alone = plan(gpu_facts(), **HUGE)
    spread = plan(gpu_facts(), engine_args={"decode-context-parallel-size": 8}, **HUGE)
    ratio = spread["memory"]["kv_tokens_max"] / alone["memory"]["kv_tokens_max"]
    assert ratio == pytest.approx(8, rel=1e-5)


def test_workers_are_bound_by_the_engine_from_032_and_not_from_outside() -> None:
    old, new = plan(gpu_facts(), **HUGE), plan(gpu_facts(), engine_version="0.32.0", **HUGE)
    assert "--numa-bind" not in old["instances"][0]["argv"]
    assert old["instances"][0]["numactl"] == ["numactl", "--interleave=all"]
    assert "--numa-bind" in new["instances"][0]["argv"]
    assert new["instances"][0]["numactl"] == []


@pytest.mark.parametrize("version", ["0.15.0", "0.19.1", "0.25.1", "0.32.0", "0.33.0"])
def test_every_flag_of_the_plan_is_one_that_the_version_takes(version: str) -> None:
    document = plan(gpu_facts(), engine_version=version, concurrency=64, **HUGE)
    flags = [part for part in document["instances"][0]["argv"] if part.startswith("--")]
    states = {flag: load().flag("vllm", version, flag).status for flag in flags}
    assert {flag for flag, state in states.items() if state in ("rejected", "fails")} == set()


def test_the_flags_of_a_hybrid_are_those_of_sglang_kt() -> None:
    document = plan(hybrid_facts(), **HUGE)
    assert document["engine"]["name"] == "ktransformers"
    flags = [part for part in document["instances"][0]["argv"] if part.startswith("--")]
    states = {flag: load().flag("ktransformers", "0.7.2", flag).status for flag in flags}
    assert {flag for flag, state in states.items() if state != "accepted"} <= {
        "--trust-remote-code"
    }


def test_a_hybrid_is_laid_over_its_nodes() -> None:
    document = plan(hybrid_facts(), **HUGE)
    instance = document["instances"][0]
    assert argument(document, "--kt-method") == "RAWINT4"
    assert argument(document, "--kt-threadpool-count") == "2"
    place = instance["argv"].index("--kt-numa-nodes")
    assert instance["argv"][place + 1 : place + 3] == ["0", "1"]
    # Two cores a pool stay free, and threads are cores.
    assert argument(document, "--kt-cpuinfer") == "92"
    assert instance["numactl"] == []
    assert instance["gpus"] == [0, 1]


def test_memory_of_a_hybrid() -> None:
    """634 GB of experts; each GPU: 24.34 GB / 2, cache, 1.486 GB / 2 an expert, 2.75 GB."""
    document = plan(hybrid_facts(), context=32768, concurrency=1, **HUGE)
    memory = document["memory"]
    experts = next(p["bytes"] for p in memory["host_parts"] if p["kind"] == "weights")
    assert experts / 1e9 == pytest.approx(634.2, rel=0.001)
    used = memory["weights_bytes_per_gpu"] + memory["kv_available_bytes_per_gpu"]
    used += memory["overhead_bytes_per_gpu"]
    assert used <= memory["gpu_bytes"] * 0.98
    assert used > memory["gpu_bytes"] * 0.95
    assert memory["kv_tokens_max"] == 32768
    assert memory["gpu_experts"] > 66
    fewer = plan(hybrid_facts(), context=32768, engine_args={"kt-num-gpu-experts": 10}, **HUGE)
    assert fewer["memory"]["gpu_experts"] == 10


def test_a_hybrid_computes_long_prompts_in_the_largest_chunks_that_leave_room_for_experts() -> None:
    """Every chunk streams all layers: a chunk of 16,384 tokens costs hardly more than of 4,096."""
    fp8 = HUGE | {"model": "kimi-k2-instruct"}
    wide = plan(hybrid_facts(), **fp8)
    assert argument(wide, "--chunked-prefill-size") == "16384"
    narrow = plan(hybrid_facts(), engine_args={"chunked-prefill-size": 4096}, **fp8)
    assert argument(narrow, "--chunked-prefill-size") == "4096"
    speed, slow = (p["throughput"]["prefill_tok_s"]["expected"] for p in (wide, narrow))
    assert speed > 1.5 * slow
    used, less = (p["memory"]["overhead_bytes_per_gpu"] for p in (wide, narrow))
    assert used - less == 12288 * 14 * 7168 * 2
    small = hybrid_facts()
    for card in small["gpus"]:
        card |= {"model": "NVIDIA GeForce RTX 4090", "memory_total_bytes": 24564 << 20}
    assert argument(plan(small, **HUGE), "--chunked-prefill-size") == "4096"


def test_a_hybrid_with_too_little_memory_is_refused() -> None:
    document = plan(hybrid_facts(gib=512), **HUGE)
    assert "memory.host" in blocked_by(document)


def test_a_ram_disk_beside_a_hybrid_needs_room_on_each_node() -> None:
    assert plan(hybrid_facts(gib=1536), **HUGE)["ram_disk"]["enabled"] is True
    assert plan(hybrid_facts(gib=1024), **HUGE)["ram_disk"]["enabled"] is False
    assert plan(quoted("quote-xeon-8468-768gb"), **HUGE)["ram_disk"]["enabled"] is False


def test_kimi_k26_stays_on_one_gpu_in_a_hybrid() -> None:
    document = plan(hybrid_facts(4), **(HUGE | {"model": "kimi-k2.6"}))
    assert document["engine"]["name"] == "ktransformers"
    assert document["parallel"]["tensor"] == 1
    assert found(document, "gpu.idle")


def test_nodes_are_taken_from_both_sockets() -> None:
    assert plan(snc(4), **HUGE)["hybrid"]["nodes"] == [0, 1, 2, 3]
    assert plan(snc(6), **HUGE)["hybrid"]["nodes"] == [0, 1, 3, 4]


@pytest.mark.parametrize("sheet", sorted(path.stem for path in SHEETS.glob("*.yml")))
@pytest.mark.parametrize("model", ["kimi-k2.5", "kimi-k3", "kimi-k2-instruct"])
def test_every_shipped_sheet_gives_a_plan_of_its_schema(sheet: str, model: str) -> None:
    document = plan(quoted(sheet), **(HUGE | {"model": model}))
    jsonschema.Draft202012Validator(schema("plan")).validate(document)


@pytest.mark.parametrize(
    ("sheet", "measured"), [("reference-004", 112.0), ("quote-8x-h200", 121.0)]
)
def test_speeds_of_one_request_hold_what_was_measured(sheet: str, measured: float) -> None:
    """112 tok/s on 8x H100; 8.26 ms a token on 8x H200 (1K prompts, dummy weights)."""
    speed = plan(quoted(sheet), **HUGE)["throughput"]["single_tok_s"]
    assert speed["low"] <= measured <= speed["high"]


def test_a_python_that_the_engine_has_no_wheels_for_is_said() -> None:
    facts = hybrid_facts()
    assert not found(plan(facts, **HUGE), "python.engine")
    facts["python"] |= {"path": "/usr/bin/python3", "version": "3.13.5", "others": []}
    assert found(plan(facts, **HUGE), "python.lock")[0]["severity"] == "blocker"
    facts = gpu_facts()
    facts["python"] |= {"path": "/usr/bin/python3", "version": "3.9.2", "others": []}
    assert found(plan(facts, engine_version="0.25.1", **HUGE), "python.engine")


def test_what_does_not_fit_has_no_speed() -> None:
    document = plan(recorded("h200-x8"), **(HUGE | {"model": "kimi-k3"}))
    assert {"gpu.memory", "context.memory"} <= blocked_by(document)
    assert document["throughput"]["decode_tok_s"]["expected"] is None


def test_pipeline_stages_share_weights_and_cache() -> None:
    args = {"tensor-parallel-size": 4, "pipeline-parallel-size": 2}
    flat, staged = plan(gpu_facts(), **HUGE), plan(gpu_facts(), engine_args=args, **HUGE)
    assert blocked_by(staged) == blocked_by(flat)
    assert staged["parallel"]["pipeline"] == 2
    assert staged["instances"][0]["gpus"] == list(range(8))
    assert staged["memory"]["weights_bytes_per_gpu"] == pytest.approx(
        flat["memory"]["weights_bytes_per_gpu"], rel=0.03
    )


FLAGS = [
    *["tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "max-num-seqs"],
    *["max-model-len", "gpu-memory-utilization", "kv-cache-dtype", "max-num-batched-tokens"],
    *["kt-cpuinfer", "kt-threadpool-count", "kt-numa-nodes", "kt-num-gpu-experts", "load-format"],
    *["decode-context-parallel-size", "enable-expert-parallel", "speculative-config"],
]
VALUES = [0, -1, 1, 3, 8, 10**9, 0.5, "8", "auto", "x", True, False, None, [], [0, 1], {"a": 1}]


@pytest.mark.parametrize("seed", range(60))
def test_no_flag_of_the_inventory_ends_in_a_traceback(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    facts = chance.choice([gpu_facts(), hybrid_facts(), lab_facts()])
    args = {flag: chance.choice(VALUES) for flag in chance.sample(FLAGS, 4)}
    document = plan(facts, engine_args=args, **chance.choice([{}, HUGE]))
    jsonschema.Draft202012Validator(schema("plan")).validate(document)


@pytest.mark.parametrize("facts", [gpu_facts(), hybrid_facts()], ids=["gpus", "hybrid"])
def test_an_engine_on_gpus_finds_a_compiler(facts: dict[str, Any]) -> None:
    """Triton builds a C module when the engine starts; a bare server has no gcc, no headers."""
    assert {"g++", "python3-dev"} <= set(plan(facts, **HUGE)["packages"])


def test_headers_are_those_of_the_engines_own_python() -> None:
    facts = hybrid_facts()
    other = {"path": "/usr/bin/python3.12", "version": "3.12"}
    facts["python"] |= {"path": "/usr/bin/python3", "version": "3.13.5", "others": [other]}
    assert {"python3.12-dev", "python3.12-venv"} <= set(plan(facts, **HUGE)["packages"])


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
