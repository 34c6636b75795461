"""How wide a range has to be, learnt only from sources that a fit has not seen.

A fit's own variance is too sure of itself: rows differ by what the model does not know. So each
source is left out in turn (by one step away from the fit of all), its rows predicted from the
others, and the misses counted in units of the predicted spread. The ranges are then made as wide as
held the wanted share of such rows: of the whole family, and of the class itself as far as it has
sources of its own to speak for it.
To score a range honestly, all of that happens again without the source that is being scored.
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

# Rows that a range is to hold, of those left out: of a source that nobody has seen, some points
# fewer are held, and 0.85 are promised.
TARGET_COVERAGE = 0.88
# A class borrows from all classes of its family, as though that were this many sources more. One
# request alone on GPUs differs more than many together, and has the sources to say so.
_BORROWED_SOURCES = {"cpu": 20, "gpu": 10}
FAMILIES: dict[str, dict[str, Prior]] = {"cpu": CPU, "gpu": GPU}
Widths = dict[str, float]


@dataclass(frozen=True)
class Prediction:
    """A case with what was predicted for it, in tokens a second."""

    case: Case
    expected: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Relative error of the expected value."""
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
    """Name the class whose width applies; many requests to a hybrid are one of their own."""
    many = "many " if case.kind == "hybrid" and case.serving.concurrency > 1 else ""
    return f"{many}{case.kind} {case.quantity}"


def predict_spread(case: Case, fit: fitting.Fit) -> float:
    """Log-spread predicted for a machine that the fit has not seen."""
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
    """Pick the family that speaks about a case."""
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
    """Predict the wanted cases of one source from what all other sources say."""
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
    """Spreads that hold the wanted share of rows, each predicted without its source."""
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
    """Quantile between neighbours."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * share
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
