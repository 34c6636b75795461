"""How wide a range has to be, computed only from sources that a fit has not seen.

A fit's own variance is too small, because rows also differ by effects that the model lacks. So each
source is left out in turn (by one step away from the fit of all), its rows are predicted from the
other sources, and the errors are counted in units of the predicted spread. The ranges get the width
that holds the target share of these rows. The width is a mean of the whole family's and the class's
own; the more sources a class has, the more its own counts.
To score a range honestly, all of this is repeated without the source that is being scored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.planner.throughput import fit as fitting
from kimi_prov.planner.throughput import measured
from kimi_prov.planner.throughput.parameters import CPU, GPU, Prior

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.planner.throughput.cases import Case

# The share of left-out rows that ranges are made to hold. Of a new source they hold some points
# less; 0.85 are promised.
TARGET_COVERAGE = 0.88
# The family's width counts in a class as much as so many sources. On GPUs it counts less: one
# request alone differs from many together, and there are enough sources that show it.
_BORROWED_SOURCES = {"cpu": 20, "gpu": 10}
FAMILIES: dict[str, dict[str, Prior]] = {"cpu": CPU, "gpu": GPU}
Widths = dict[str, float]


@dataclass(frozen=True)
class Prediction:
    """A case with its prediction, in tokens a second."""

    case: Case
    expected: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """The relative error of the expected value."""
        return abs(self.expected / self.case.value - 1)

    @property
    def is_covered(self) -> bool:
        """Whether the range holds the measured value."""
        return self.low <= self.case.value <= self.high


@dataclass(frozen=True)
class Model:
    """One family's fit with the widths of its classes."""

    fit: fitting.Fit
    widths: Widths

    def predict(self, case: Case) -> Prediction:
        """Predict one case with its range."""
        expected = 1 / fitting.predict_seconds(case, self.fit.values)
        half = self.widths.get(name_stratum(case), self.widths["all"]) * predict_spread(
            case, self.fit
        )
        return Prediction(case, expected, expected * math.exp(-half), expected * math.exp(half))


def name_stratum(case: Case) -> str:
    """Name the class whose width applies; several requests to a hybrid have their own class."""
    many = "many " if case.kind == "hybrid" and case.serving.concurrency > 1 else ""
    return f"{many}{case.kind} {case.quantity}"


def predict_spread(case: Case, fit: fitting.Fit) -> float:
    """Predict the log-spread for a machine that the fit has not seen."""
    slopes = fitting.compute_gradient(case, fit.values, fit.names)
    apart = fitting.GROUP_SPREAD**2 - measured.count_known_variance(case, fit.values)
    return math.sqrt(fit.variance(slopes) + apart + case.noise**2)


def fit_models(cases: Sequence[Case]) -> dict[str, Model]:
    """Fit both families and their widths."""
    models = {}
    for name, priors in FAMILIES.items():
        mine = [case for case in cases if fitting.choose_priors(case) is priors]
        fit = fitting.fit_parameters(mine, priors)
        models[name] = Model(fit, _fit_widths(mine, priors, fit))
    return models


def choose_model(case: Case, models: dict[str, Model]) -> Model:
    """Choose the model of the family that a case belongs to."""
    return models["gpu" if case.machine.cpu is None else "cpu"]


def predict_from_other_sources(cases: Sequence[Case]) -> list[Prediction]:
    """Predict each case from all other sources, widths included."""
    sources = sorted({case.source for case in cases})
    return [
        prediction
        for source in sources
        for prediction in predict_without_source(source, cases, cases)
    ]


def predict_without_source(
    source: str, known: Sequence[Case], cases: Sequence[Case]
) -> list[Prediction]:
    """Predict those of `cases` that are of one source, from the known cases of all others."""
    predictions = []
    for priors in FAMILIES.values():
        mine = [c for c in cases if c.source == source and fitting.choose_priors(c) is priors]
        if mine:
            rest = [c for c in known if c.source != source and fitting.choose_priors(c) is priors]
            fit = fitting.fit_parameters(rest, priors)
            model = Model(fit, _fit_widths(rest, priors, fit))
            predictions += [model.predict(case) for case in mine]
    return predictions


def _fit_widths(cases: Sequence[Case], priors: dict[str, Prior], fit: fitting.Fit) -> Widths:
    """Compute the widths that hold the target share of rows, each predicted without its source."""
    misses: dict[str, list[float]] = {}
    sources: dict[str, int] = {}
    for source, near in fitting.fit_without_each_source(cases, priors, fit).items():
        left_out = [case for case in cases if case.source == source]
        for case in left_out:
            off = abs(fitting.compute_residual(case, near.values)) / predict_spread(case, near)
            misses.setdefault(name_stratum(case), []).append(off)
        for name in {name_stratum(case) for case in left_out}:
            sources[name] = sources.get(name, 0) + 1
    everything = [off for offs in misses.values() for off in offs]
    family = "gpu" if priors is GPU else "cpu"
    borrowed = _BORROWED_SOURCES[family]
    common = _compute_quantile(everything, TARGET_COVERAGE)
    widths = {"all": common}
    for name, offs in sorted(misses.items()):
        weight = sources[name] / (sources[name] + borrowed)
        own = math.log(_compute_quantile(offs, TARGET_COVERAGE))
        widths[name] = math.exp(weight * own + (1 - weight) * math.log(common))
    return widths


def _compute_quantile(values: Sequence[float], share: float) -> float:
    """Compute a quantile, interpolated between neighbours."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * share
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
