"""What GPUs do for a token: kernels, ranks, links and formats, and rows that no fit has seen."""

from __future__ import annotations

import dataclasses

import pytest

from kimi_prov.catalog import loader
from kimi_prov.planner import throughput
from kimi_prov.planner.throughput import fit, physics, rows, stored, subjects
from kimi_prov.planner.throughput.inputs import Link
from kimi_prov.planner.throughput.parameters import GPU

K25 = throughput.make_shape("kimi-k2.5", loader.load_catalogue().model("kimi-k2.5").architecture)
B200_NVFP4 = "Kimi K2.5 NVFP4 on B200"


@pytest.fixture(scope="module")
def cases():
    found, _ = rows.read_file(stored.ROWS)
    return [case for case in found if case.machine.cpu is None]


def machine(card: str, count: int, **changed: float) -> throughput.Machine:
    return throughput.Machine(gpus=dataclasses.replace(subjects.find_gpus(card, count), **changed))


def asked(card: str, count: int, weights: str, concurrency: int, **more: float):
    width = 1 if weights == "nvfp4" else 2
    serving = throughput.Serving(
        "vllm",
        throughput.find_weight_format(weights),
        concurrency=concurrency,
        kv_dtype_bytes=width,
        **more,
    )
    return throughput.estimate_speed(K25, machine(card, count), serving)


@pytest.mark.parametrize(
    ("count", "concurrency", "measured"),
    [(4, 4, 111.1), (4, 8, 90.7), (4, 16, 67.4), (4, 32, 46.8), (4, 64, 32.2), (8, 4, 125.5)],
)
def test_nvfp4_on_b200_lies_in_its_range(count, concurrency, measured):
    """8K prompts, 1K answers, vLLM 0.21.0, no speculative decoding."""
    found = asked("B200 SXM", count, "nvfp4", concurrency).decode_tok_s
    assert found.low <= measured <= found.high
    assert found.high / found.low <= 2.2


@pytest.mark.parametrize(
    ("card", "concurrency", "measured"),
    [
        ("H200 SXM", 4, 91.2),
        ("H200 SXM", 64, 16.7),
        ("B200 SXM", 4, 104.4),
        ("B200 SXM", 64, 26.0),
    ],
)
def test_native_int4_stays_within_an_eighth(card, concurrency, measured):
    found = asked(card, 8, "int4", concurrency).decode_tok_s
    assert found.expected == pytest.approx(measured, rel=0.12)


def test_without_graphs_a_token_waits_for_the_processor_to_start_its_kernels():
    """Seen of 5, 4 and 24 of Kimi K2's layers on H200; told of K2.6 over four hosts of H100."""
    five = dataclasses.replace(
        loader.load_catalogue().model("kimi-k2-thinking").architecture, layers=5
    )
    shape = throughput.make_shape("kimi-k2-thinking", five)
    serving = throughput.Serving(
        "vllm", throughput.find_weight_format("int4"), input_tokens=3072, without_graphs=True
    )
    found = throughput.estimate_speed(shape, machine("H200 SXM", 2), serving)
    assert found.decode_tok_s.low <= 49.6 <= found.decode_tok_s.high
    assert found.basis == "latency-bound"
    graphs = throughput.estimate_speed(
        shape, machine("H200 SXM", 2), dataclasses.replace(serving, without_graphs=False)
    )
    # Its prompts were read at 51,900 tokens a second all the same: there is work enough.
    assert found.prefill_tok_s == graphs.prefill_tok_s
    assert found.prefill_tok_s.low <= 51866 <= found.prefill_tok_s.high
    for layers, seen in ((4, 111.2), (24, 13.9)):
        other = throughput.make_shape("kimi-k2-thinking", dataclasses.replace(five, layers=layers))
        speed = throughput.estimate_speed(other, machine("H200 SXM", 2), serving).decode_tok_s
        assert speed.low <= seen <= speed.high
    link = Link("infiniband", 400.0)
    four = {"hosts": 4, "stages": 4, "tensor_parallel": 8, "link": link, "without_graphs": True}
    told = asked("H100 SXM 80GB", 8, "int4", 1, **four).decode_tok_s
    assert told.low <= 22 <= told.high


def test_without_graphs_a_short_prompt_waits_for_the_processor_as_a_step_does():
    short, long = (
        asked("H200 SXM", 8, "int4", 1, without_graphs=True, input_tokens=tokens)
        for tokens in (256, 8192)
    )
    assert short.single_ttft_s.expected >= 1 / short.decode_tok_s.expected
    graphs = asked("H200 SXM", 8, "int4", 1, input_tokens=8192)
    assert long.prefill_tok_s.expected == graphs.prefill_tok_s.expected


def test_where_a_step_has_work_enough_graphs_bring_nothing():
    few, many = (
        [
            asked("H200 SXM", 8, "int4", requests, without_graphs=without).decode_tok_s.high
            for without in (False, True)
        ]
        for requests in (1, 256)
    )
    assert few[0] > 3 * few[1]
    assert many[0] == many[1]


def missed(known, wanted):
    """Median error of what is wanted, by a fit of what is known."""
    values = fit.fit_parameters(known, GPU).values
    errors = sorted(abs(1 / fit.predict_seconds(c, values) / c.value - 1) for c in wanted)
    return errors[len(errors) // 2]


def test_a_fit_that_saw_no_kimi_in_nvfp4_predicts_it(cases):
    unseen = [case for case in cases if B200_NVFP4 in case.group]
    assert len(unseen) >= 10
    assert missed([case for case in cases if B200_NVFP4 not in case.group], unseen) <= 0.12


def test_a_fit_that_saw_no_four_bit_floats_at_all_predicts_them(cases):
    """What FP4 brings is physics and priors, not a coefficient that its own rows made."""

    def short(case):
        return case.serving.weights.multiplied_bits == 4

    unseen = [case for case in cases if short(case)]
    assert len({case.author for case in unseen}) >= 5
    assert missed([case for case in cases if not short(case)], unseen) <= 0.18


def values():
    return stored.load_models()["gpu"].fit.values


def one_step(of: throughput.Machine, weights: str = "int4", **more: float) -> physics.Parts:
    serving = throughput.Serving("vllm", throughput.find_weight_format(weights), **more)
    return physics.estimate_decode(K25, of, serving, values())


def test_fewer_ranks_have_less_to_sum_and_one_has_nothing():
    latency = [one_step(machine("B200 SXM", n)).latency for n in (1, 2, 4, 8)]
    assert latency == sorted(set(latency))
    apart, linked = (one_step(machine("B200 SXM", 8, nvlink_gb_s=n)).latency for n in (0, 1800))
    assert apart > linked
    single = one_step(machine("B200 SXM", 1, nvlink_gb_s=0)).latency
    assert single == one_step(machine("B200 SXM", 1)).latency


def test_fused_experts_take_fewer_launches_where_engines_have_the_kernel():
    def gain(card):
        fp4, int4 = (one_step(machine(card, 8), f).latency for f in ("nvfp4", "int4"))
        return 1 - fp4 / int4

    assert gain("B200 SXM") > 0.05
    assert gain("H200 SXM") == 0
    assert gain("RTX PRO 6000 Blackwell (Server)") == 0


def prompt(of: throughput.Machine, weights: str) -> float:
    serving = throughput.Serving("vllm", throughput.find_weight_format(weights))
    return physics.estimate_prefill(K25, of, serving, values()).kernel


def test_only_what_is_packed_is_multiplied_in_narrow_numbers():
    of = machine("B200 SXM", 8)
    assert prompt(of, "nvfp4") < prompt(of, "int4") / 2
    # A quarter of the bits, and yet not four times as fast: attention is as wide as it was.
    assert prompt(of, "nvfp4") > prompt(of, "int4") / 8
    hopper = machine("H200 SXM", 8)
    assert prompt(hopper, "nvfp4") == prompt(hopper, "int4")


def test_a_prompts_sums_go_over_the_links():
    linked = machine("RTX PRO 6000 Blackwell (Server)", 8, nvlink_gb_s=900)
    apart = machine("RTX PRO 6000 Blackwell (Server)", 8)
    sent = 61 * 2 * 7168 * 2  # bytes of a token, once
    least = sent / (apart.gpus.pcie_gb_s * 1e9)
    assert prompt(apart, "int4") - prompt(linked, "int4") > least


def test_builds_of_2025_are_slower_outside_what_they_were_tuned_for():
    of = machine("H200 SXM", 8)
    old, new = (one_step(of, old_build=flag).total for flag in (True, False))
    assert old > 1.3 * new
    shape = subjects.find_model("DeepSeek-R1")
    serving = throughput.Serving("sglang", throughput.find_weight_format("fp8"))
    aged = dataclasses.replace(serving, old_build=True)
    steps = [physics.estimate_decode(shape, of, s, values()).total for s in (serving, aged)]
    assert steps[0] == steps[1]


def test_a_card_without_tuned_kernels_is_slower_with_narrow_weights_only():
    of = machine("H20-3e", 8)
    shape = subjects.find_model("DeepSeek-R1")

    def slow_down(weights):
        serving = throughput.Serving("sglang", throughput.find_weight_format(weights))
        untuned = dataclasses.replace(serving, untuned=True)
        one, other = (
            physics.estimate_step(shape, of, s, values()).total for s in (untuned, serving)
        )
        return one / other

    assert slow_down("fp8") > 1.3
    assert slow_down("bf16") == 1


def test_a_request_costs_each_layer_its_part():
    shallow = dataclasses.replace(K25, layers=K25.layers // 2)
    of = machine("H200 SXM", 8)

    def grow(shape):
        few, many = (
            throughput.Serving("vllm", throughput.find_weight_format("int4"), concurrency=n)
            for n in (32, 64)
        )
        steps = [physics.estimate_step(shape, of, s, values()) for s in (few, many)]
        return steps[1].latency - steps[0].latency

    assert grow(shallow) == pytest.approx(grow(K25) * shallow.layers / K25.layers)


def test_ranks_that_share_a_cache_lose_alike_with_and_without_links(cases):
    """Eight RTX PRO 6000 on PCIe lost 42 us a layer with a cache shared over all."""
    steps = [
        one_step(machine("RTX PRO 6000 Blackwell (Server)", 8, nvlink_gb_s=rate), cache_ranks=n)
        for rate in (0, 900)
        for n in (8, 1)
    ]
    lost = [a.latency - b.latency for a, b in zip(steps[::2], steps[1::2], strict=True)]
    assert lost[0] == pytest.approx(lost[1])
    assert 0 < lost[0] / 61 < 100e-6
    assert case_of(cases, "f042").serving.cache_ranks == 8


def case_of(cases, name):
    return next(case for case in cases if case.id == name)


def test_rows_of_nvfp4_have_an_fp8_cache_in_which_all_of_their_requests_run(cases):
    assert case_of(cases, "kb05").serving.kv_dtype_bytes == 1
    assert case_of(cases, "kb05").serving.running == 64
    assert case_of(cases, "s076").serving.kv_dtype_bytes == 2


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("s061", True),  # sglang 0.5.6.post2
        ("s066", True),  # sglang (about 2025-12)
        ("kq01", False),  # sglang 0.5.8.post1
        ("kr01", True),  # vllm (2025-07)
        ("kb01", False),  # vllm 0.21.0
        ("s107", False),  # undated
    ],
)
def test_rows_tell_how_old_their_engine_is(cases, name, old):
    assert case_of(cases, name).serving.old_build is old
