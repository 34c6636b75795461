"""What load a bench asks for, what it refuses, and how it reads what the real clients wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.bench import client, results
from kimi_prov.on_host.bench import load as bench_load
from kimi_prov.on_host.bench.load import Load

RECORDED = Path(__file__).resolve().parents[3] / "data" / "recordings" / "bench-clients"
ROWS: list[dict[str, Any]] = [
    {"prompt": f"question {number}", "answer": "yes", "image": None} for number in range(5)
]


def plan(engine: str = "vllm", *argv: str) -> dict[str, Any]:
    return {
        "engine": {"name": engine},
        "instances": [{"argv": list(argv)}],
        "model": {
            "name": "kimi",
            "served_names": ["kimi"],
            "serve_dir": "/models/kimi",
            "context": 4096,
        },
        "proxy": {"port": 8000},
        "throughput": {"concurrency": 8},
    }


def told(argv: list[str], flag: str) -> str | None:
    return argv[argv.index(flag) + 1] if flag in argv else None


def test_what_a_machine_does_not_know_of_a_load_is_refused() -> None:
    assert bench_load.from_document({"requests": 3, "unanswered": None}) == Load(requests=3)
    with pytest.raises(HostError, match="does not know burst in a load") as refused:
        bench_load.from_document({"requests": 3, "burst": 2.0})
    assert "kimi-prov apply" in str(refused.value.fix)


def test_a_rate_alone_is_one_load_that_nothing_bounds_but_its_requests() -> None:
    load = Load(rate_per_s=20.0, requests=1000)
    assert bench_load.list_levels(load, 64) == [1000]
    run = client.list_runs(plan(), load, (256, 64), 7)[1]
    assert told(run["argv"], "--request-rate") == "20"
    assert told(run["argv"], "--max-concurrency") == told(run["argv"], "--num-prompts") == "1000"


def test_rounds_take_turns_and_no_prompt_is_asked_twice() -> None:
    load = Load(concurrency=(1, 4), requests=2, rounds=2, form="sharegpt", prompts=5)
    runs = client.list_runs(plan(), load, (None, None), 7)
    assert [(run["round"], run["level"]) for run in runs] == [
        (0, 1),
        (1, 1),
        (1, 4),
        (2, 1),
        (2, 4),
    ]
    seeds = [told(run["argv"], "--seed") for run in runs]
    assert len(set(seeds)) == len(runs)
    # Random words warm it up; what is measured goes on in the file where the last run ended.
    assert told(runs[0]["argv"], "--dataset-name") == "random"
    asked = [client.list_conversations(ROWS, run["prompts"], whole=False) for run in runs[1:]]
    first = [[row["conversations"][0]["value"][-1] for row in rows] for rows in asked]
    assert first == [["0", "1"], ["2", "3"], ["4", "0"], ["1", "2"]]
    whole = client.list_conversations(ROWS, runs[2]["prompts"], whole=True)
    assert [row["conversations"][0]["value"][-1] for row in whole] == ["2", "3", "4", "0", "1"]


def test_a_file_with_too_few_prompts_is_asked_again_by_the_client_and_is_not_copied() -> None:
    load = Load(concurrency=(1,), requests=100_000, form="sharegpt", prompts=5, warm_up=0)
    (run,) = client.list_runs(plan(), load, (None, None), 7)
    assert "--no-oversample" not in run["argv"]
    assert len(client.list_conversations(ROWS, run["prompts"], whole=True)) == len(ROWS)
    (run,) = client.list_runs(plan(), replace(load, requests=5), (None, None), 7)
    assert "--no-oversample" in run["argv"]


@pytest.mark.parametrize("context", [96, 320, 4096])
@pytest.mark.parametrize("form", ["sharegpt", "visionarena"])
def test_requests_of_a_file_s_bench_fit_a_short_context(form: str, context: int) -> None:
    load = Load(form=form, prompts=5)
    own = plan()
    own["model"]["context"] = context
    shape = bench_load.choose_lengths(load, {}, context)
    warm = client.list_runs(own, load, shape, 7)[0]
    words = [told(warm["argv"], f"--random-{name}-len") for name in ("input", "output")]
    assert 1 < sum(int(word or 0) for word in words) <= context
    assert (shape[1] or 0) < context - 1


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (Load(input_tokens=4032), "do not fit the context of 4096"),
        (Load(output_tokens=4096), "do not fit the context of 4096"),
        (Load(form="sharegpt", prompts=1, output_tokens=4032), "4032 tokens of an answer do not"),
        (Load(input_tokens=3000, output_tokens=1100), "3000 tokens and 1100 of an answer"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(asked: Load, told: str) -> None:
    with pytest.raises(HostError, match=told):
        bench_load.choose_lengths(asked, {}, 4096)


def test_one_length_that_is_given_leaves_the_other_to_the_machine() -> None:
    assert bench_load.choose_lengths(Load(input_tokens=3900), {}, 4096) == (3900, 64)
    assert bench_load.choose_lengths(Load(output_tokens=3900), {}, 4096) == (132, 3900)


@pytest.mark.parametrize(
    ("load", "engine", "argv", "told"),
    [
        (Load(images=1), "vllm", (), "takes no images"),
        (Load(form="visionarena", prompts=1, pictures=1), "vllm", (), "takes no images"),
        (
            Load(chat=True),
            "ktransformers",
            ("--reasoning-parser", "kimi_k2"),
            "tokens of reasoning",
        ),
        (Load(chat=True), "ktransformers", (), None),
        (Load(form="sharegpt", prompts=99), "ktransformers", (), None),
        (Load(form="sharegpt", prompts=5), "ktransformers", (), "the file has 5"),
        (Load(form="sharegpt", prompts=5), "vllm", (), None),
        (Load(form="sharegpt", prompts=5, output_tokens=2044), "vllm", (), None),
        (Load(form="sharegpt", prompts=5, output_tokens=2045), "vllm", (), "over 2048 tokens"),
        (Load(output_tokens=2045), "vllm", (), None),
        (Load(form="sharegpt", prompts=99, output_tokens=3), "ktransformers", (), "of 3 tokens"),
        (Load(form="sharegpt", prompts=99, output_tokens=4), "ktransformers", (), None),
        (Load(rate_per_s=0.001), "vllm", (), "8.9 hours; a bench is ended after 4"),
        (Load(rate_per_s=1.0, requests=2401, concurrency=(1, 2), rounds=3), "vllm", (), "14406 re"),
        (Load(rate_per_s=1.0, requests=2400, concurrency=(1, 2), rounds=3), "vllm", (), None),
    ],
)
def test_what_the_client_or_the_model_cannot_do_is_refused(load, engine, argv, told) -> None:
    found = bench_load.find_refusal(load, plan(engine, *argv), lambda _: "{}")
    assert told in found.message if told else found is None


def test_images_go_to_a_model_that_takes_them_and_not_through_sglangs_client() -> None:
    def config(_: str) -> str:
        return '{"vision_config": {}}'

    load = Load(images=2, image_width=640, image_height=480)
    assert bench_load.find_refusal(load, plan(), config) is None
    refused = bench_load.find_refusal(load, plan("ktransformers"), config)
    assert refused is not None
    assert "image processor" in refused.message
    run = client.list_runs(plan(), load, (256, 64), 7)[1]
    assert told(run["argv"], "--random-mm-bucket-config") == "{(480, 640, 1): 1.0}"
    assert told(run["argv"], "--endpoint") == "/v1/chat/completions"


def recorded(name: str, client: str = "vllm-0.32.0") -> str:
    return (RECORDED / client / f"{name}.json").read_text()


@pytest.mark.parametrize("version", ["0.19.1", "0.25.1", "0.32.0"])
@pytest.mark.parametrize(
    ("name", "asked", "tokens"),
    [
        ("random-1", 4, 64),
        ("rate-1", 6, 96),
        ("images-1", 3, 48),
        ("sharegpt-1", 4, 100),
        ("visionarena-1", 4, 96),
    ],
)
def test_what_vllms_client_wrote_is_read(name: str, asked: int, tokens: int, version: str) -> None:
    found = results.read_result({"level": 2, "requests": asked}, recorded(name, f"vllm-{version}"))
    assert (found["requests"], found["failed"], found["left_out"]) == (asked, 0, 0)
    assert found["output_tokens"] == tokens
    assert 0 <= found["itl_s"]["median"] <= found["itl_s"]["p99"]
    assert 0 < found["ttft_s"]["median"] <= found["ttft_s"]["p99"]


@pytest.mark.parametrize(("name", "asked"), [("random-1", 4), ("rate-1", 6), ("sharegpt-1", 4)])
def test_what_sglangs_client_wrote_is_read(name: str, asked: int) -> None:
    text = recorded(name, "sglang-kt-0.7.2")
    found = results.read_result({"level": 2, "requests": asked}, text)
    assert (found["requests"], found["failed"], found["left_out"]) == (asked, 0, 0)
    assert 0 <= found["itl_s"]["median"] <= found["itl_s"]["p99"]
    assert found["aggregate_tok_s"] > 0


def test_what_sglangs_client_passed_over_did_not_fail() -> None:
    text = recorded("sharegpt-1", "sglang-kt-0.7.2")
    run = {"level": 2, "requests": 9}
    found = results.read_result(run, text, 5)
    assert (found["requests"], found["failed"], found["left_out"]) == (4, 1, 4)
    found = results.read_result(run, text)
    assert (found["failed"], found["left_out"]) == (5, 0)


def test_prompt_speed_of_images_is_not_told() -> None:
    run = client.list_runs(plan(), Load(images=1, requests=3), (256, 64), 7)[1]
    assert results.read_result(run, recorded("images-1"))["prefill_tok_s"] is None
    run = client.list_runs(plan(), Load(requests=4), (256, 64), 7)[1]
    assert results.read_result(run, recorded("random-1"))["prefill_tok_s"] > 0


def test_what_a_file_has_to_spare_lies_between_the_runs() -> None:
    load = Load(concurrency=(1, 4), rounds=2, form="sharegpt", prompts=220, warm_up=0)
    runs = client.list_runs(plan(), load, (None, None), 7)
    assert [run["prompts"] for run in runs] == [
        {"from": 0, "count": 3},
        {"from": 30, "count": 8},
        {"from": 110, "count": 3},
        {"from": 140, "count": 8},
    ]


def test_completions_are_offered_where_a_profile_asks_a_chat() -> None:
    asked = plan("ktransformers", "--reasoning-parser", "kimi_k2")
    found = bench_load.find_refusal(Load(chat=True, profile="lab"), asked, lambda _: "{}")
    assert found is not None
    assert found.fix is not None
    assert "--completions" in found.fix
    assert "profile lab" in found.fix


def test_prompts_that_the_client_passed_over_are_left_out_and_did_not_fail() -> None:
    found = results.read_result({"level": 2, "requests": 9}, recorded("sharegpt-1"))
    assert (found["requests"], found["failed"], found["left_out"]) == (4, 0, 5)


def test_a_load_is_the_median_of_its_rounds_and_the_warm_up_is_in_none() -> None:
    text = json.loads(recorded("random-1"))
    runs, read = [], []
    for turn, factor in enumerate((9.0, 1.0, 3.0, 2.0)):
        run = {"level": 4, "round": turn, "requests": 4}
        changed = {**text, "output_throughput": 100 * factor, "median_ttft_ms": 10 * factor}
        runs.append(run)
        read.append(results.read_result(run, json.dumps(changed)))
    (load,) = results.group_by_level(runs, read)
    assert (load["aggregate_tok_s"], load["rounds"], load["requests"]) == (200.0, 3, 12)
    assert load["spread"]["aggregate_tok_s"] == {"low": 100.0, "high": 300.0}
    assert load["spread"]["ttft_s"] == {"low": 0.01, "high": 0.03}
    assert results.describe_warm_up(runs, read)["ttft_s"]["median"] == 0.09
