"""Layouts on one host are told as physics has it, so that a search may compare them."""

from __future__ import annotations

import itertools

import pytest

from kimi_prov.planner import throughput
from kimi_prov.planner.throughput import subjects

K25 = subjects.find_model("Kimi-K2.5")
LAYOUTS = (
    {},
    {"experts_whole": True},
    {"data_parallel": 8, "tensor_parallel": 1, "experts_whole": True},
    {"data_parallel": 2, "tensor_parallel": 4},
    {"stages": 2, "tensor_parallel": 4},
    {"stages": 4, "tensor_parallel": 2},
)
CARDS = pytest.mark.parametrize(
    ("card", "weights"),
    [("B200 SXM", "nvfp4"), ("H200 SXM", "int4"), ("RTX PRO 6000", "int4"), ("MI300X", "fp8")],
)


def estimate(
    card: str, count: int, weights: str, requests: int, **layout: float
) -> throughput.Estimate:
    serving = throughput.Serving(
        "vllm",
        throughput.find_weight_format(weights),
        **({"input_tokens": 4096, "concurrency": requests} | layout),
    )
    machine = throughput.Machine(gpus=subjects.find_gpus(card, count))
    return throughput.estimate_speed(K25, machine, serving)


@CARDS
@pytest.mark.parametrize("requests", [1, 8, 64, 512])
@pytest.mark.parametrize("prompt", [256, 8192])
def test_more_cards_are_never_slower(card, weights, requests, prompt):
    few_to_many = [estimate(card, n, weights, requests, input_tokens=prompt) for n in (1, 2, 4, 8)]
    for few, many in itertools.pairwise(few_to_many):
        assert many.aggregate_tok_s.expected >= few.aggregate_tok_s.expected
        assert many.prefill_tok_s.expected >= few.prefill_tok_s.expected
        assert many.ttft_s.expected <= few.ttft_s.expected


@CARDS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_requests_never_lower_the_speed_of_all(card, weights, layout):
    loads = (1, 2, 3, 4, 7, 8, 9, 16, 33, 64, 128, 512)
    few_to_many = [estimate(card, 8, weights, n, **layout) for n in loads]
    for few, many in itertools.pairwise(few_to_many):
        assert many.aggregate_tok_s.expected >= few.aggregate_tok_s.expected
        assert many.decode_tok_s.expected <= few.decode_tok_s.expected
        assert many.ttft_s.expected >= few.ttft_s.expected


@CARDS
def test_two_engines_side_by_side_serve_more_than_one_of_the_same_cards(card, weights):
    """Each of half of the cards, with half of the requests: twice the speed of one such engine."""
    one, half = (estimate(card, 4, weights, n).aggregate_tok_s.expected for n in (64, 32))
    assert one < 2 * half


@CARDS
def test_a_prompt_alone_is_computed_on_the_cards_of_all_copies_of_attention(card, weights):
    copies, one = (
        estimate(card, count, weights, 1, **layout).prefill_tok_s.expected
        for count, layout in ((8, LAYOUTS[2]), (1, {}))
    )
    assert copies > 1.5 * one
