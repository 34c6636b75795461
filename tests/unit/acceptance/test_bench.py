"""Bench: what the client is asked, what is normal, what changed, and how it is told."""

from __future__ import annotations

import copy

import bench_inputs
import closed_form
import pytest

from kimi_prov.acceptance import bench
from kimi_prov.show.report import bench_html, bench_markdown
from kimi_prov.show.text import bench as bench_text

SPEED = {"low": 4.0, "expected": 6.0, "high": 9.0}
LEVEL = {
    "concurrency": 1,
    "requests": 3,
    "failed": 0,
    "seconds": 100.0,
    "input_tokens": 3000,
    "output_tokens": 600,
    "ttft_s": {"median": 10.0, "p99": 12.0},
    "tpot_s": {"median": 0.2, "p99": 0.25},
    "decode_tok_s": 5.0,
    "aggregate_tok_s": 4.6,
    "prefill_tok_s": 100.0,
}
LAYER = {
    "available": True,
    "reason": None,
    "method": "RAWINT4",
    "experts": 384,
    "experts_of_model": 384,
    "layers_of_model": 60,
    "threads": 94,
    "bytes": 10_569_646_080,
    "kernel": "AMXInt4_KGroup_MOE",
    "variant": "amx",
    "load_s": 3.0,
    "rows": [{"batch": 1, "seconds": 0.0011, "bytes_per_s": 200_000_000_000}],
}
FINDINGS = [
    {"id": "tuning.governor", "severity": "info", "title": "governor", "observed": "powersave"},
    {
        "id": "memory.channels",
        "severity": "warning",
        "title": "Memory channels are not populated",
        "observed": "8 of 16 channels",
        "fix": "add modules",
    },
    {"id": "memory.speed", "severity": "pass", "title": "full speed", "observed": "4800"},
]


def measured(**more: object) -> dict[str, object]:
    """An answer of a machine on which all is as predicted."""
    found = {
        "plan": {
            "engine": {"name": "ktransformers", "variant": "cuda", "version": "0.7.2"},
            "model": {"name": "kimi-k2.5", "random_weights": False},
            "throughput": {
                "basis": "memory bandwidth",
                "concurrency": 1,
                "single_tok_s": SPEED,
                "decode_tok_s": SPEED,
                "aggregate_tok_s": SPEED,
                "prefill_tok_s": {"low": 50.0, "expected": 100.0, "high": 200.0},
            },
        },
        "load": 0.1,
        "busy": False,
        "facts": {
            "collected_at": "2026-11-21T06:00:00Z",
            "memory": {"bandwidth_bytes_per_s": {"theoretical": 400e9}},
        },
        "memory": {
            "bytes_per_s": 300_000_000_000,
            "by": "probe",
            "reason": None,
            "seconds": 3.0,
            "nodes": [],
        },
        "layer": LAYER,
        "serve": {"input_tokens": 1000, "output_tokens": 200, "levels": [LEVEL]},
    }
    return copy.deepcopy(found | more)


def report(*hosts: dict[str, object]) -> dict[str, object]:
    named = {f"node{number}": host for number, host in enumerate(hosts)}
    return {"schema": "kimi-prov/bench/v1", "ok": True, "hosts": named}


def valid(document: dict[str, object]) -> None:
    closed_form.validate(document, "bench")


def test_a_machine_as_predicted_is_normal_and_has_nothing_to_look_at() -> None:
    found = bench.make_document(measured(), FINDINGS, {})
    assert found["normal"] is True
    assert {row["verdict"] for row in found["compared"]} == {"normal"}
    assert found["look_at"] == []


def test_a_slow_one_says_which_figure_and_where_to_look_first() -> None:
    slow = measured(load=40.0, busy=True)
    slow["memory"]["bytes_per_s"] = 150_000_000_000  # type: ignore[index]
    found = bench.make_document(slow, FINDINGS, {})
    assert found["normal"] is False
    assert [row["name"] for row in found["compared"] if row["verdict"] == "slow"] == ["memory"]
    titles = [cause["title"] for cause in found["look_at"]]
    assert titles == [
        "Other work runs on the machine",
        "Memory channels are not populated",
        "governor",
    ]


def test_a_slow_one_without_a_known_cause_says_what_was_looked_at() -> None:
    level = {**LEVEL, "decode_tok_s": 1.0}
    slow = measured(serve={"input_tokens": 1000, "output_tokens": 200, "levels": [level]})
    (cause,) = bench.make_document(slow, [], {})["look_at"]
    assert "threads" in cause["observed"]


@pytest.mark.parametrize(
    ("threads", "seconds", "variant", "verdict"),
    [
        # As 16 cores with AMX that read 302 GB/s were measured: bound by instructions.
        (14, 0.00262, "amx", "normal"),
        (8, 0.00377, "amx", "normal"),
        (14, 0.0052, "amx", "slow"),
        (14, 0.016, "avx2", "normal"),
    ],
)
def test_a_layer_is_judged_by_its_threads_where_memory_is_not_the_limit(
    threads: int, seconds: float, variant: str, verdict: str
) -> None:
    row = {"batch": 1, "seconds": seconds, "bytes_per_s": round(220.2e6 / seconds)}
    layer = {**LAYER, "threads": threads, "variant": variant, "rows": [row]}
    given = measured(layer=layer)
    given["memory"]["bytes_per_s"] = 302_000_000_000  # type: ignore[index]
    (found,) = [row for row in bench.compare_figures(given) if row["name"] == "layer"]
    assert found["verdict"] == verdict


def test_faster_than_predicted_is_no_fault() -> None:
    level = {**LEVEL, "prefill_tok_s": 900.0}
    fast = measured(serve={"input_tokens": 1000, "output_tokens": 200, "levels": [level]})
    found = bench.make_document(fast, FINDINGS, {})
    assert found["normal"] is True
    assert "fast" in {row["verdict"] for row in found["compared"]}


def test_random_weights_are_a_stand_in_and_nothing_is_judged() -> None:
    nothing = {"low": None, "expected": None, "high": None}
    lab = measured(layer={"available": False, "reason": "the engine vllm has no kt-kernel"})
    lab["plan"]["model"]["random_weights"] = True  # type: ignore[index]
    names = ("single_tok_s", "decode_tok_s", "aggregate_tok_s", "prefill_tok_s")
    lab["plan"]["throughput"] |= dict.fromkeys(names, nothing)  # type: ignore[index,operator]
    lab["facts"]["memory"]["bandwidth_bytes_per_s"]["theoretical"] = None  # type: ignore[index]
    found = bench.make_document(lab, FINDINGS, {"lab_kind": "nspawn"})
    assert found["normal"] is None
    assert len(found["stand_ins"]) == 2
    valid(report(found))
    assert "nothing was predicted" in bench_text.format_text(report(found))


def test_requests_that_failed_make_it_fail() -> None:
    level = {**LEVEL, "failed": 2}
    found = bench.make_document(
        measured(serve={"input_tokens": 1000, "output_tokens": 200, "levels": [level]}), [], {}
    )
    assert (found["ok"], found["detail"]) == (False, "2 requests failed")


def test_the_last_result_is_compared_and_what_differs_is_said() -> None:
    then = bench.make_document(measured(), [], {})
    now = copy.deepcopy(then)
    now["engine"]["version"] = "0.8.0"
    now["serve"]["levels"][0]["aggregate_tok_s"] = 2.3
    found = bench.compare_results(then, now)
    assert found["differs"] == [
        "engine: ktransformers cuda 0.7.2 then, ktransformers cuda 0.8.0 now"
    ]
    by_name = {row["name"]: row["change"] for row in found["rows"]}
    assert by_name == {"memory": 0.0, "layer": 0.0, "1 at once": -0.5}
    valid(report({**now, "last": found}))


def test_the_text_keeps_to_eighty_columns_and_gives_the_verdict() -> None:
    slow = measured(load=40.0, busy=True)
    slow["serve"]["levels"][0]["decode_tok_s"] = 1.0  # type: ignore[index]
    found = bench.make_document(slow, FINDINGS, {})
    again = {**found, "last": bench.compare_results(found, found)}
    text = bench_text.format_text(
        report(found, again, {"ok": False, "detail": "away", "stand_ins": []})
    )
    assert max(map(len, text.splitlines())) <= 80
    assert "SLOWER than this machine should be" in text
    assert "8 of 16 channels" in text
    assert "384 of 384 experts" in " ".join(text.split())
    assert "node2  away" in text
    valid(report(found, again, {"ok": False, "detail": "away", "stand_ins": []}))


def sweep(**asked: object) -> dict[str, object]:
    speeds = ((1, 100.0, 95.0), (8, 70.0, 480.0), (64, 30.0, 1600.0))
    levels = [bench_inputs.loaded(bench_inputs.level(n, d, a, 900.0)) for n, d, a in speeds]
    return bench_inputs.result(*levels, asked=dict(asked) or {"rounds": 3})


def test_a_sweep_is_told_with_its_rounds_what_the_engine_counted_and_power() -> None:
    found = sweep()
    valid(report(found))
    text = bench_text.format_text(report(found))
    assert max(map(len, text.splitlines())) <= 80
    said = " ".join(text.split())
    assert "1440 to 1760 tok/s of all in 3 rounds; PREEMPTED" in said
    assert "8 14.3 ms 28.6 ms 10% 4% 4 0 2240 W 0.214" in said
    assert "1 request, not among these" in said


def test_a_load_that_the_plan_did_not_predict_is_measured_and_not_judged() -> None:
    found = sweep(images=1, image_width=640, image_height=480, chat=True, rate_per_s=20.0)
    valid(report(found))
    tokens = [row for row in found["compared"] if row["unit"] == "tok_per_s"]  # type: ignore[attr-defined]
    assert {row["verdict"] for row in tokens} == {"unjudged"}
    text = " ".join(bench_text.format_text(report(found)).split())
    assert "none is of this load: 20 requests a second, images" in text


def test_a_load_of_another_time_is_said_to_differ() -> None:
    found = bench.compare_results(bench_inputs.result(), sweep(chat=True, rounds=3))
    assert "load: completions then, chats, 3 rounds now" in found["differs"]


def test_why_something_is_not_known_is_told_once() -> None:
    reason = "the engine has no GPU; what processors and memory draw is not measured"
    power = dict.fromkeys(("watts", "joules", "tokens_per_joule")) | {"gpus": 0, "samples": 0}
    levels = [
        bench_inputs.loaded(bench_inputs.level(n, 9.0, 9.0, 9.0), power={**power, "reason": reason})
        for n in (1, 16)
    ]
    found = bench_inputs.result(*levels, asked={"rounds": 3})
    valid(report(found))
    assert " ".join(bench_text.format_text(report(found)).split()).count(reason) == 1


def test_conversations_of_a_file_that_were_left_out_are_told() -> None:
    asked = {"prompts": "sharegpt", "prompts_of_file": 9, "chosen_lengths": False}
    level = bench_inputs.loaded(bench_inputs.level(4, 9.0, 9.0, 9.0))
    found = report(bench_inputs.result(level, asked={**asked, "unanswered_of_file": 3}))
    valid(found)
    for text in (
        bench_text.format_text(found),
        bench_html.render_page(found),
        bench_markdown.format_page(found),
    ):
        assert "3 conversations of the file left out: they have no answer" in " ".join(text.split())
    found = report(bench_inputs.result(level, asked={**asked, "unanswered_of_file": 0}))
    assert "left out" not in bench_text.format_text(found)


def test_a_load_at_a_rate_is_called_by_its_rate() -> None:
    level = bench_inputs.loaded(bench_inputs.level(1000, 20.0, 1500.0, 300.0))
    asked = {"rate_per_s": 20.0, "requests": 1000, "chosen_lengths": False}
    found = bench_inputs.result(level, asked=asked)
    valid(report(found))
    text = bench_text.format_text(report(found))
    assert "   20/s " in text
    assert "1000 at once" not in text
    assert [row["name"] for row in bench.compare_results(found, found)["rows"]] == [
        "memory",
        "20/s",
    ]
    most = bench_inputs.loaded(bench_inputs.level(64, 20.0, 1500.0, 300.0), rounds=1)
    bounded = bench_inputs.result(most, asked=asked)
    assert "20/s, 64 at once" in bench_text.format_text(report(bounded))
    # What bounds them tells several apart, though one of them is reached by none.
    several = bench_inputs.result(most, level, asked=asked)
    names = [row["name"] for row in several["serve"]["levels"]]
    assert names == ["20/s, 64 at once", "20/s, 1000 at once"]
    assert len(bench.compare_results(several, several)["rows"]) == 1 + len(names)
    assert max(map(len, bench_text.format_text(report(several)).splitlines())) <= 80
    assert max(map(len, bench_text.format_text(report(bounded)).splitlines())) <= 80
