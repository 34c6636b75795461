"""What a draft gains or costs: held against measured pairs, and falling with the requests."""

from __future__ import annotations

import math

import pytest

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.planner.throughput import (
    Machine,
    Serving,
    draft_rows,
    drafts,
    find_weight_format,
    make_shape,
    subjects,
)
from kimi_prov.planner.throughput.classes import MIN_COVERAGE
from kimi_prov.planner.throughput.inputs import Range

CATALOGUE = load_catalogue()
TRIALS = CATALOGUE.draft_trials
EAGLE = CATALOGUE.draft("kimi-k2.5-eagle3-mla")
# Milliseconds of a step without the draft and with all of its three guesses wrong, by the number
# of requests: vLLM 0.25.1 on 4x H200, random weights (docs/scenarios/dgx-h200.md).
REJECTED = {1: (6.6, 8.3), 16: (9.7, 18.0), 64: (24.0, 36.0)}


def gain(draft, tokens, length, gpu="H200 SXM", model="kimi-k2.5", gpus=8, **load):
    row = CATALOGUE.model(model)
    serving = Serving(
        engine="vllm",
        **{"weights": find_weight_format("int4"), "input_tokens": 8192, "output_tokens": 1024}
        | load,
    )
    cards = subjects.find_gpus(gpu, gpus)
    guessing = drafts.make_guessing_of_length(draft, tokens, Range(length, length, length))
    shape = make_shape(row.name, row.architecture)
    return drafts.estimate_gain(shape, Machine(gpus=cards), serving, guessing)


def test_the_ranges_hold_what_was_measured_given_its_acceptance():
    """As many as ranges are made to hold: two of a pull request's texts gain more than any other,
    beside a slower engine without the draft, and nobody told their lengths.
    """
    held = []
    for trial in TRIALS:
        assert trial.length, "a trial without its acceptance says little about the estimate"
        span = gain(
            CATALOGUE.draft(trial.draft),
            trial.tokens,
            trial.length,
            trial.gpu,
            trial.model,
            trial.gpus,
            weights=find_weight_format(trial.format),
            concurrency=trial.requests,
            input_tokens=trial.input_tokens,
            output_tokens=trial.output_tokens,
        )
        held.append(span.low <= trial.gain <= span.high)
    assert sum(held) >= MIN_COVERAGE * len(held)


def test_pairs_are_scored_by_what_was_published_of_the_draft_not_by_their_own_acceptance():
    scored = {row.case.id: row for row in draft_rows.predict_from_other_authors([])}
    assert set(scored) == {trial.id for trial in TRIALS}
    # Of eight guesses of K2.5's draft with K2.6, few were right: the trial has two a step.
    row = scored["dflash-mi300x-8"]
    assert row.case.value == pytest.approx(127.1 / 90.4)
    assert row.expected > gain(
        CATALOGUE.draft("kimi-k2.5-dflash"), 2, 2.0, "MI300X", "kimi-k2.6", concurrency=8,
        input_tokens=256, output_tokens=512,
    ).expected  # fmt: skip
    assert row.low <= row.case.value <= row.high


@pytest.mark.parametrize("requests", REJECTED)
def test_the_range_holds_steps_of_which_no_guess_was_right(requests):
    without, with_draft = REJECTED[requests]
    span = gain(EAGLE, 3, 1.0, gpus=4, concurrency=requests, input_tokens=1024, output_tokens=128)
    assert span.low <= without / with_draft <= span.high


def test_a_gain_falls_with_the_requests_and_becomes_a_loss():
    loads = [gain(EAGLE, 3, 2.9, concurrency=n, input_tokens=64) for n in (1, 4, 16, 1024)]
    expected = [span.expected for span in loads]
    assert expected == sorted(expected, reverse=True)
    assert expected[0] > 1
    assert gain(EAGLE, 3, 1.2, concurrency=32).expected < 1


@pytest.mark.parametrize("workload", ["mixed", "chat", "code", "agents"])
def test_every_published_acceptance_gives_an_ordered_range(workload):
    for draft in CATALOGUE.drafts:
        for tokens in (1, draft.tokens, 12):
            guessing = drafts.make_guessing(draft, tokens, workload)
            if guessing is not None:
                span = guessing.length
                assert 1 <= span.low <= span.expected <= span.high <= tokens + 1


def test_fewer_guesses_give_fewer_tokens_a_step():
    assert drafts.change_length(2.94, 3, 3) == 2.94
    lengths = [drafts.change_length(2.94, 3, guesses) for guesses in (1, 2, 3, 7)]
    assert lengths == sorted(lengths)
    assert math.isclose(drafts.change_length(lengths[1], 2, 3), 2.94, rel_tol=1e-6)


def test_a_draft_without_published_acceptance_has_no_estimate():
    assert drafts.make_guessing(CATALOGUE.draft("kimi-k2.6-dspark"), 7, "code") is None


def test_a_product_of_ranges_is_as_wide_as_both_together():
    one, other = Range(50.0, 100.0, 200.0), Range(0.5, 1.0, 2.0)
    span = drafts.multiply_ranges(one, other)
    assert span.expected == 100
    assert 25 < span.low < 50
    assert 200 < span.high < 400
