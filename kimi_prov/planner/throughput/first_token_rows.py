"""Rows with a time to the first token under load, and what is predicted for them.

The times are not fitted: they follow from the speeds of prompts and answers, and from the waiting
of first_token. So each row is predicted from coefficients without its author, as speeds are.

Decides: the score of times to the first token.
Held by: tests/unit/planner/throughput/test_first_token.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kimi_prov.planner.throughput import calibrate, first_token, physics
from kimi_prov.planner.throughput.inputs import Range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.planner.throughput.calibrate import Model, Prediction
    from kimi_prov.planner.throughput.cases import Case


@dataclass(frozen=True)
class FirstToken:
    """A measured mean time; `in_waves` where all requests had the same lengths."""

    case: Case
    in_waves: bool


def make_first_token(base: Case, mean_s: float, load: str) -> FirstToken:
    """Make it from a mean time and the words for its load."""
    return FirstToken(replace(base, quantity="first token", value=mean_s), "equal" in load)


def predict_from_other_authors(
    times: Sequence[FirstToken], known: Sequence[Case]
) -> list[Prediction]:
    """Predict each time from the speeds of all other authors."""
    predictions = []
    near = calibrate.fit_values(known) if times else None
    for author in sorted({time.case.author for time in times}):
        own = [time for time in times if time.case.author == author]
        others = [case for case in known if case.author != author]
        models = calibrate.fit_models(others, near, {calibrate.name_family(t.case) for t in own})
        predictions += [predict_first_token(time, models) for time in own]
    return predictions


def predict_first_token(time: FirstToken, models: dict[str, Model]) -> Prediction:
    """Predict one time with its range, in seconds."""
    case = time.case
    serving, model = case.serving, calibrate.choose_model(case, models)
    values = model.fit.values
    one = model.predict(replace(case, quantity="prefill", prompts=1.0))
    prompt = physics.estimate_prefill(
        case.model, case.machine, serving, values, serving.running
    ).total
    step = physics.estimate_step(case.model, case.machine, serving, values).total
    queue = first_token.Queue(serving.input_tokens * prompt, step, time.in_waves)
    speed = Range(one.low, one.expected, one.high)
    span = first_token.estimate_first_token(serving, speed, queue)
    return calibrate.Prediction(case, span.expected, span.low, span.high)
