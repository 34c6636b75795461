"""How wide a range has to be, computed only from authors that a fit has not seen.

A fit's own variance is too small, because rows also differ by effects that the model lacks. So each
author is left out in turn (by one step away from the fit of all), his rows are predicted from the
other authors, and the errors are counted in units of the predicted spread. The ranges get the width
that holds the target share of these rows, each author counting as much as any other: a bench of
twenty rows is one opinion. Three rules widen what few authors support:

- A class's width is a mean of the whole family's and its own; the more authors, the more its own.
- A class of N authors is widened by the square root of 1 + 1/N: the mean of N authors is off by
  itself, and the next one differs from it.
- A card, or an engine on a kind of processor, has an offset of its own. How much such kinds differ
  is seen by leaving out one kind at a time. N authors of a kind have shown its offset in part, so
  that its variance remains by 1 / (1 + N x variance between kinds / variance between authors).

- Where a kind's authors agree, its ranges get narrower, and wider where they disagree.

To score a range honestly, all of this is repeated without the author who is being scored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import TYPE_CHECKING

from kimi_prov.planner.throughput import fit as fitting
from kimi_prov.planner.throughput import measured
from kimi_prov.planner.throughput.parameters import CPU, GPU, Prior, Values

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from kimi_prov.planner.throughput.cases import Case

# The share of an unseen author's rows that ranges are made to hold.
TARGET_COVERAGE = 0.85
# The family's width counts in a class as much as so many authors. On GPUs it counts less: one
# request alone differs from many together, and there are enough authors who show it.
_BORROWED_AUTHORS = {"cpu": 20, "gpu": 10}
FAMILIES: dict[str, dict[str, Prior]] = {"cpu": CPU, "gpu": GPU}
Widths = dict[str, float]
_ROUNDING = 1e-9
# The usual variance counts in a kind as much as so many authors, and no row counts more than one
# that is so many half-widths off.
_USUAL_AUTHORS, _MAX_OFF = 4, 2.0
# The standard deviation of normal values over the median of their amounts.
_OF_MEDIAN = 1.4826


@dataclass(frozen=True)
class Kinds:
    """How much kinds of machines differ from the model (log-spread), and each kind's authors.

    `widths` are those of the kinds over the class's, from how much their authors agree. All are by
    quantity, because a kind that decodes as expected may read prompts otherwise.
    """

    spreads: dict[str, float] = field(default_factory=dict)
    authors: dict[str, int] = field(default_factory=dict)
    widths: dict[str, float] = field(default_factory=dict)

    def compute_variance(self, case: Case) -> float:
        """Compute the variance of a kind's own offset that its authors leave open."""
        variance = self.spreads.get(case.quantity, 0.0) ** 2
        known = self.authors.get(name_kind(case), 0) * variance / fitting.GROUP_SPREAD**2
        return variance / (1 + known)


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
    """One family's fit with the widths of its classes and the offsets of its kinds."""

    fit: fitting.Fit
    widths: Widths
    kinds: Kinds = field(default_factory=Kinds)

    def predict(self, case: Case) -> Prediction:
        """Predict one case with its range."""
        expected = 1 / fitting.predict_seconds(case, self.fit.values)
        width = self.widths.get(name_stratum(case), self.widths["all"])
        width *= self.kinds.widths.get(name_kind(case), 1.0)
        half = width * predict_spread(case, self.fit, self.kinds)
        return Prediction(case, expected, expected * math.exp(-half), expected * math.exp(half))


def name_kind(case: Case) -> str:
    """Name the kind of machine: the card, or engine and processor; and what was measured of it."""
    cpu, gpus = case.machine.cpu, case.machine.gpus
    if cpu is None:
        return f"{gpus.name if gpus else ''}, {case.quantity}"
    return f"{case.serving.engine} on {cpu.vector}, {case.quantity}"


def name_stratum(case: Case) -> str:
    """Name the class whose width applies; several requests to a hybrid have their own class."""
    many = "many " if case.kind == "hybrid" and case.serving.concurrency > 1 else ""
    return f"{many}{case.kind} {case.quantity}"


def predict_spread(case: Case, fit: fitting.Fit, kinds: Kinds) -> float:
    """Predict the log-spread for a machine that the fit has not seen."""
    slopes = fitting.compute_gradient(case, fit.values, fit.names)
    apart = fitting.GROUP_SPREAD**2 - measured.count_known_variance(case, fit.values)
    return math.sqrt(fit.variance(slopes) + apart + kinds.compute_variance(case) + case.noise**2)


def fit_models(
    cases: Sequence[Case],
    near: dict[str, Values] | None = None,
    families: Collection[str] = tuple(FAMILIES),
) -> dict[str, Model]:
    """Fit families and their widths, beginning from values that are near."""
    return {
        name: _fit_model(
            [c for c in cases if fitting.choose_priors(c) is priors],
            priors,
            near[name] if near else None,
        )
        for name, priors in FAMILIES.items()
        if name in families
    }


def choose_model(case: Case, models: dict[str, Model]) -> Model:
    """Choose the model of the family that a case belongs to."""
    return models[name_family(case)]


def name_family(case: Case) -> str:
    """Name the family that a case belongs to."""
    return "gpu" if case.machine.cpu is None else "cpu"


def predict_from_other_authors(cases: Sequence[Case]) -> list[Prediction]:
    """Predict each case from all other authors, widths included."""
    authors = sorted({case.author for case in cases})
    near = fit_values(cases)
    return [
        prediction
        for author in authors
        for prediction in predict_without_author(author, cases, cases, near)
    ]


def fit_values(cases: Sequence[Case]) -> dict[str, Values]:
    """Fit only the parameters of both families: fits without one author begin from them."""
    return {
        name: fitting.fit_parameters(
            [c for c in cases if fitting.choose_priors(c) is priors], priors
        ).values
        for name, priors in FAMILIES.items()
    }


def predict_without_author(
    author: str,
    known: Sequence[Case],
    cases: Sequence[Case],
    near: dict[str, Values] | None = None,
) -> list[Prediction]:
    """Predict those of `cases` that are of one author, from the known cases of all others."""
    predictions = []
    for name, priors in FAMILIES.items():
        mine = [c for c in cases if c.author == author and fitting.choose_priors(c) is priors]
        if mine:
            rest = [c for c in known if c.author != author and fitting.choose_priors(c) is priors]
            model = _fit_model(rest, priors, near[name] if near else None)
            predictions += [model.predict(case) for case in mine]
    return predictions


def _fit_model(
    cases: Sequence[Case], priors: dict[str, Prior], near: Values | None = None
) -> Model:
    fit = fitting.fit_parameters(cases, priors, near)
    kinds = Kinds(_estimate_kind_spreads(cases, priors, fit), _count_authors_of_kinds(cases))
    misses = _list_misses(cases, priors, fit, kinds)
    widths = _fit_widths(misses, _BORROWED_AUTHORS["gpu" if priors is GPU else "cpu"])
    return Model(fit, widths, replace(kinds, widths=_fit_kind_widths(misses, widths)))


def _count_authors_of_kinds(cases: Sequence[Case], without: str = "") -> dict[str, int]:
    pairs = {(name_kind(case), case.author) for case in cases if case.author != without}
    counts: dict[str, int] = {}
    for kind, _ in sorted(pairs):
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def _estimate_kind_spreads(
    cases: Sequence[Case], priors: dict[str, Prior], fit: fitting.Fit
) -> dict[str, float]:
    """Estimate the log-spread between kinds of each quantity, from kinds that a fit has not seen.

    The offset of a kind is the mean of its authors'. Offsets vary by the kinds' own variance, and
    by what is known without it: that of the fit, and a share of that between authors. Their median
    is used, so that one strange kind does not widen all others.
    """
    offsets: dict[str, list[float]] = {}
    known: dict[str, list[float]] = {}
    for kind, near in fitting.fit_without_each(cases, priors, fit, name_kind).items():
        own = [case for case in cases if name_kind(case) == kind]
        by_author: dict[str, list[float]] = {}
        for case in own:
            residual = fitting.compute_residual(case, near.values)
            by_author.setdefault(case.author, []).append(residual)
        quantity = own[0].quantity
        offset = fmean(fmean(residuals) for residuals in by_author.values())
        offsets.setdefault(quantity, []).append(abs(offset))
        variance = fmean(_count_variance(case, near, len(by_author)) for case in own)
        known.setdefault(quantity, []).append(variance)
    return {
        quantity: math.sqrt(max(0.0, (_OF_MEDIAN * median(own)) ** 2 - median(known[quantity])))
        for quantity, own in sorted(offsets.items())
    }


def _count_variance(case: Case, fit: fitting.Fit, authors: int) -> float:
    """Count the variance of a mean of so many authors: the fit's stays, the authors' shrinks."""
    slopes = fitting.compute_gradient(case, fit.values, fit.names)
    return fit.variance(slopes) + (fitting.GROUP_SPREAD**2 + case.noise**2) / authors


def _list_misses(
    cases: Sequence[Case], priors: dict[str, Prior], fit: fitting.Fit, kinds: Kinds
) -> list[_Miss]:
    """List how far each row is off, where it is predicted without its author."""
    misses = []
    for author, near in fitting.fit_without_each(cases, priors, fit, name_author).items():
        others = Kinds(kinds.spreads, _count_authors_of_kinds(cases, author))
        for case in cases:
            if case.author == author:
                off = abs(fitting.compute_residual(case, near.values))
                off /= predict_spread(case, near, others)
                misses.append(_Miss(author, name_stratum(case), name_kind(case), off))
    return misses


def _fit_widths(misses: Sequence[_Miss], borrowed: int) -> Widths:
    """Compute the widths that hold the target share of rows, each predicted without its author."""
    common = _compute_width(misses)
    widths = {"all": common * math.sqrt(2)}
    for name in sorted({miss.stratum for miss in misses}):
        some = [miss for miss in misses if miss.stratum == name]
        authors = len({miss.author for miss in some})
        weight = authors / (authors + borrowed)
        own = math.log(_compute_width(some))
        mean = math.exp(weight * own + (1 - weight) * math.log(common))
        widths[name] = mean * math.sqrt(1 + 1 / authors)
    return widths


def _fit_kind_widths(misses: Sequence[_Miss], widths: Widths) -> Widths:
    """Compute how wide the ranges of each kind are, over those of its classes.

    A kind's variance is a mean of its authors' and of the usual one, which counts as much as so
    many authors (a scaled inverse chi-squared prior). So kinds whose authors agree get narrower as
    authors are added, and those whose authors disagree get wider.
    """
    squares: dict[str, dict[str, list[float]]] = {}
    for miss in misses:
        own = squares.setdefault(miss.kind, {}).setdefault(miss.author, [])
        own.append(min(_MAX_OFF, miss.off / widths[miss.stratum]) ** 2)
    means = {kind: [fmean(own) for own in by.values()] for kind, by in squares.items()}
    usual = fmean(mean for own in means.values() for mean in own)
    return {
        kind: math.sqrt((_USUAL_AUTHORS + sum(own) / usual) / (_USUAL_AUTHORS + len(own)))
        for kind, own in sorted(means.items())
    }


def name_author(case: Case) -> str:
    """Name the author of a case."""
    return case.author


@dataclass(frozen=True)
class _Miss:
    """How far a prediction was off, in predicted spreads, for a row of an author."""

    author: str
    stratum: str
    kind: str
    off: float


def _compute_width(misses: Sequence[_Miss]) -> float:
    """Compute the quantile of misses that holds the target share of rows, each author's alike."""
    counts: dict[str, int] = {}
    for miss in misses:
        counts[miss.author] = counts.get(miss.author, 0) + 1
    reached = 0.0
    ordered = sorted(misses, key=lambda miss: miss.off)
    for miss in ordered:
        reached += 1 / counts[miss.author] / len(counts)
        if reached >= TARGET_COVERAGE - _ROUNDING:
            return miss.off
    return ordered[-1].off
