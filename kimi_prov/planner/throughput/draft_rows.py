"""Drafts' gains as a class of the score: measured pairs beside what the planner would have said.

The acceptance is the draft's published one for the pair's kind of text, not the pair's own: nobody
knows that of his load beforehand. The speeds are from a fit without the pair's author.

Decides: the score of drafts.
Held by: tests/unit/planner/throughput/test_drafts.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.planner.throughput import calibrate, drafts, stored, subjects
from kimi_prov.planner.throughput.cases import NOISE, Case, find_kind
from kimi_prov.planner.throughput.formats import find_weight_format
from kimi_prov.planner.throughput.inputs import Machine, Serving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.catalog.models import DraftTrial

_ANY_TEXT = ("chat", "code", "math")


def predict_from_other_authors(known: Sequence[Case]) -> list[calibrate.Prediction]:
    """Predict each measured pair whose draft has a published acceptance."""
    trials = load_catalogue().draft_trials
    predictions = []
    for source in dict.fromkeys(trial.source for trial in trials):
        others = [case for case in known if case.author not in source]
        model = stored.load_models()["gpu"]
        if len(others) < len(known):
            model = calibrate.fit_models(others, families={"gpu"})["gpu"]
        own = [trial for trial in trials if trial.source == source]
        guesses = [_predict_trial(trial, model) for trial in own]
        predictions += [prediction for prediction in guesses if prediction is not None]
    return predictions


def _predict_trial(trial: DraftTrial, model: calibrate.Model) -> calibrate.Prediction | None:
    draft = load_catalogue().draft(trial.draft)
    texts = _ANY_TEXT if trial.load is None else (trial.load,)
    guessing = drafts.make_guessing_of_texts(draft, trial.tokens, texts)
    if guessing is None:
        return None
    case = make_case(trial)
    span = drafts.estimate_gain(case.model, case.machine, case.serving, guessing, model.fit.values)
    return calibrate.Prediction(case, span.expected, span.low, span.high)


def make_case(trial: DraftTrial) -> Case:
    """Make the case of a measured pair. Engines that are not estimated count as vLLM."""
    architecture = load_catalogue().model(trial.model).architecture
    cards = subjects.find_gpus(trial.gpu, trial.gpus)
    machine = Machine(gpus=cards)
    serving = Serving(
        engine="sglang" if trial.engine == "sglang" else "vllm",
        weights=find_weight_format(trial.format),
        concurrency=trial.requests,
        input_tokens=trial.input_tokens,
        output_tokens=trial.output_tokens,
    )
    return Case(
        id=trial.id,
        author=trial.source,
        group=trial.source,
        kind=find_kind(machine, trial.requests),
        quantity="draft",
        model=subjects.make_shape(trial.model, architecture),
        machine=machine,
        serving=serving,
        value=trial.gain,
        noise=NOISE[trial.confidence],
    )
