"""How much faster a draft makes a load, or slower: from its published acceptance and its costs.

A step with a draft takes longer: the draft's own passes, and more tokens to verify, which use more
experts. In return it gives several tokens. With one request the steps are few and the launches
count; with many, nearly all experts are read in any case and the arithmetic counts.

Decides: the gain of a draft.
Held by: tests/unit/planner/throughput/test_drafts.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final, Literal

from kimi_prov.planner.throughput import physics, stored
from kimi_prov.planner.throughput.inputs import Range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.catalog.models import Draft
    from kimi_prov.planner.throughput.inputs import Machine, ModelShape, Serving
    from kimi_prov.planner.throughput.parameters import Values

Workload = Literal["mixed", "chat", "code", "agents"]
# The kinds of text of a workload. Agents write code; nobody published what a draft accepts of the
# rest of their traces.
_LOADS: Final[dict[Workload, tuple[str, ...]]] = {
    "mixed": ("chat", "code", "math"),
    "chat": ("chat",),
    "code": ("code",),
    "agents": ("code", "chat"),
}
# Benchmarks are easier than what people ask for: one draft for K2.6 gives 3.22 tokens a step on
# HumanEval and 2.55 on SWE-bench (model card of AQ-MedAI/Kimi-K26-eagle3). It lowers the lower end.
_REAL_TEXT = (2.553 - 1) / (3.217 - 1)
_MAX_RATE = 0.999
# Of sixteen measured pairs fourteen lie within this factor of what is estimated here, given their
# own acceptance: thirteen trials of the catalogue, and steps of 1, 16 and 64 requests on 4x H200 of
# which no guess was right (docs/scenarios/dgx-h200.md).
_SPREAD = 1.22


@dataclass(frozen=True)
class Guessing:
    """What the estimator has to know of a draft.

    `tokens`: guessed in each step. `length`: tokens that a step gives. `passes`: how often the
    draft runs in a step.
    """

    tokens: int
    length: Range
    weight_bytes: float
    layers: int
    passes: int


def make_guessing(draft: Draft, tokens: int, workload: Workload) -> Guessing | None:
    """Describe a draft for a load; None where nobody published what of it is accepted."""
    return make_guessing_of_texts(draft, tokens, _LOADS[workload])


def make_guessing_of_texts(draft: Draft, tokens: int, texts: Sequence[str]) -> Guessing | None:
    """Describe a draft for kinds of text; None where nobody published what of it is accepted."""
    rows = [row for row in draft.acceptance if row.load in texts]
    if not rows:
        return None
    lengths = [change_length(row.length, row.tokens, tokens) for row in rows]
    low = 1 + (min(lengths) - 1) * _REAL_TEXT
    span = Range(low, fmean(lengths), max(lengths))
    return make_guessing_of_length(draft, tokens, span)


def make_guessing_of_length(draft: Draft, tokens: int, length: Range) -> Guessing:
    """Describe a draft whose steps give so many tokens."""
    passes = 1 if draft.guesses_at_once else tokens
    return Guessing(tokens, length, draft.size_bytes, draft.layers, passes)


def change_length(length: float, tokens: int, guesses: int) -> float:
    """Convert the tokens of a step with `tokens` guesses into those with `guesses`.

    Each guess is taken to be right equally often, after one that is right.
    """
    if tokens == guesses:
        return length
    low, high = 0.0, _MAX_RATE
    for _ in range(50):
        rate = (low + high) / 2
        low, high = (rate, high) if _count_tokens(rate, tokens) < length else (low, rate)
    return _count_tokens(low, guesses)


def _count_tokens(rate: float, guesses: int) -> float:
    return sum(rate**power for power in range(guesses + 1))


def estimate_gain(
    model: ModelShape,
    machine: Machine,
    serving: Serving,
    guessing: Guessing,
    values: Values | None = None,
) -> Range:
    """Estimate how many times as fast answers come with a draft, on GPUs that hold all weights.

    `values`: the parameters of another fit than the stored one.
    """
    values = values or stored.load_models()["gpu"].fit.values
    plain = physics.estimate_decode(model, machine, serving, values).total
    step = physics.estimate_step(model, machine, serving, values).total
    verified = physics.estimate_verification(model, machine, serving, values, guessing.tokens)
    longer = step + verified.total + _estimate_draft(model, machine, serving, values, guessing)
    # The prompts of other requests take the same time of each token.
    prompts = plain - step

    def divide(length: float) -> float:
        return plain / (longer / length + prompts)

    span = guessing.length
    return Range(divide(span.low) / _SPREAD, divide(span.expected), divide(span.high) * _SPREAD)


def multiply_ranges(one: Range, other: Range) -> Range:
    """Multiply two ranges whose errors have nothing to do with each other."""
    expected = one.expected * other.expected
    below = math.hypot(*(math.log(r.expected / r.low) for r in (one, other)))
    above = math.hypot(*(math.log(r.high / r.expected) for r in (one, other)))
    return Range(expected * math.exp(-below), expected, expected * math.exp(above))


def _estimate_draft(
    model: ModelShape, machine: Machine, serving: Serving, values: Values, guessing: Guessing
) -> float:
    """Estimate the seconds of a draft's passes in a step: its launches, and reading its weights."""
    gpus = machine.gpus
    if gpus is None:
        raise ValueError("a draft runs on GPUs")
    # Beside its decoder layers it joins the model's hidden states, and picks tokens by the head.
    launches = physics.estimate_layer_us(model, gpus, serving, values) * (guessing.layers + 1)
    rate = physics.count_ranks(gpus, serving) * gpus.bandwidth_gb_s * 1e9 * values["memory_share"]
    return guessing.passes * (launches * 1e-6 + guessing.weight_bytes / rate)
