"""The time to the first token: of one request alone, and of one among others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kimi_prov.catalog import loader
from kimi_prov.planner import throughput
from kimi_prov.planner.throughput import calibrate, first_token_rows, plugin, rows, stored, subjects

K25 = throughput.make_shape("kimi-k2.5", loader.load_catalogue().model("kimi-k2.5").architecture)


def on_gpus(**asked: float) -> throughput.Estimate:
    machine = throughput.Machine(gpus=subjects.find_gpus("H200 SXM", 8))
    serving = throughput.Serving("vllm", throughput.find_weight_format("int4"), **asked)
    return throughput.estimate_speed(K25, machine, serving)


def on_hybrid(**asked: float) -> throughput.Estimate:
    cpu, cards = subjects.find_cpu("EPYC 9654", 2), subjects.find_gpus("H100 NVL", 2)
    serving = throughput.Serving("ktransformers", throughput.find_weight_format("rawint4"), **asked)
    return throughput.estimate_speed(K25, throughput.Machine(cpu=cpu, gpus=cards), serving)


def on_cpus(**asked: float) -> throughput.Estimate:
    serving = throughput.Serving("ik_llama.cpp", throughput.make_uniform_format(0.6), **asked)
    machine = throughput.Machine(cpu=subjects.find_cpu("EPYC 9654", 1))
    return throughput.estimate_speed(K25, machine, serving)


def on_plugin(**asked: float) -> throughput.Estimate:
    layout = plugin.Layout("kt", 92, 2, 46, 230.4)
    serving = throughput.Serving("vllm", throughput.find_weight_format("rawint4"), **asked)
    return plugin.estimate_speed(K25, layout, serving)


MACHINES = pytest.mark.parametrize("machine", [on_gpus, on_hybrid, on_cpus, on_plugin])


@MACHINES
def test_alone_a_request_waits_for_its_own_prompt_only(machine):
    found = machine(input_tokens=4000)
    assert found.single_ttft_s.expected == pytest.approx(4000 / found.prefill_tok_s.expected)
    assert found.single_ttft_s.low == pytest.approx(4000 / found.prefill_tok_s.high)
    assert found.single_ttft_s.high == pytest.approx(4000 / found.prefill_tok_s.low)
    assert found.ttft_s == found.single_ttft_s


@MACHINES
def test_among_others_it_waits_for_some_of_their_prompts_but_never_for_all(machine):
    few, many = (machine(input_tokens=4000, concurrency=n) for n in (4, 32))
    assert few.single_ttft_s.expected < few.ttft_s.expected < many.ttft_s.expected
    for found, others in ((few, 3), (many, 31)):
        assert found.ttft_s.low < found.ttft_s.expected < found.ttft_s.high
        assert found.ttft_s.expected < (2 + others / 2) * found.single_ttft_s.expected


@MACHINES
def test_short_answers_bring_prompts_more_often(machine):
    long, short = (machine(input_tokens=4000, concurrency=16, output_tokens=n) for n in (4000, 100))
    assert short.ttft_s.expected > long.ttft_s.expected


def test_requests_that_find_no_room_are_not_counted_among_the_running():
    room = 4 * (8192 + 1024)
    assert on_gpus(concurrency=64, kv_tokens_max=room).ttft_s == on_gpus(concurrency=4).ttft_s


def test_copies_of_attention_take_prompts_of_their_own():
    one, four = (on_gpus(concurrency=32, data_parallel=n, tensor_parallel=2) for n in (1, 4))
    assert four.ttft_s.expected < one.ttft_s.expected


def predict(time: first_token_rows.FirstToken) -> calibrate.Prediction:
    return first_token_rows.predict_first_token(time, stored.load_models())


def test_requests_of_equal_length_come_in_waves_and_wait_for_half_of_all():
    """Lambda's mean is 2.26 s: 32 requests at once, 8192 tokens in and 2048 out, on eight B200."""
    times = {time.case.id: time for time in rows.read_first_tokens([stored.ROWS])}
    assert [name for name, time in times.items() if time.in_waves] == ["a026"]
    assert "s063" not in times  # one request alone waits for none
    together = predict(times["a026"])
    apart = predict(replace(times["a026"], in_waves=False))
    assert apart.expected < 2.26 < together.expected
    assert together.low < 2.26 < together.high
    unknown = predict(replace(times["a026"], in_waves=None))
    assert unknown.expected == apart.expected
    assert apart.high < 2.26 < unknown.high


def test_the_range_is_narrower_than_the_difference_of_one_prompt_and_all():
    for time in rows.read_first_tokens([stored.ROWS]):
        prediction, others = predict(time), time.case.serving.others
        assert prediction.low < prediction.expected < prediction.high
        if others > 10 and not time.in_waves:
            assert prediction.high / prediction.low < 1 + others


def test_times_are_no_rows_of_the_fit():
    known, _ = rows.read_file(stored.ROWS)
    assert {case.quantity for case in known} == {"decode", "prefill"}
    times = rows.read_first_tokens([stored.ROWS])[:1]
    [found] = first_token_rows.predict_from_other_authors(times, known)
    assert found.case.quantity == "first token"
    assert isinstance(found, calibrate.Prediction)
