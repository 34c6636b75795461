"""The classes by which the estimator is scored, their figures, and the aims of each class.

A class is scored by rows that no fit has seen. With fewer than three authors its figures would say
more about the authors than about the estimator. It is then unscored: the report gives its number of
rows and authors, and no figure.

Decides: the score of speeds.
Held by: tests/unit/planner/throughput/test_score_classes.py,
  tests/component/planner/throughput/test_score_rival.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Literal, TypeVar

from kimi_prov.planner.throughput.formats import find_weight_format

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kimi_prov.planner.throughput.calibrate import Prediction
    from kimi_prov.planner.throughput.cases import Case, Quantity
    from kimi_prov.planner.throughput.inputs import WeightFormat

_T = TypeVar("_T")
MIN_AUTHORS = 3
# The aims of every class that has aims: the share of rows that ranges hold, and their mean
# high/low, which is judged from so many authors: with fewer, ranges are wider by rule.
MIN_COVERAGE, MAX_HIGH_OVER_LOW, WIDTH_AUTHORS = 0.85, 2.2, 10
# The aims of decode's median error, in the order of the table; a class with None gets no verdict.
AIMS: dict[str, float | None] = {
    "GPU, INT4 and FP8": 0.15,
    "GPU, NVFP4": 0.20,
    "GPU, MXFP4": 0.20,
    "GPU, other formats": None,
    "hybrid": 0.20,
    "CPU": 0.20,
}
PREFILL_AIM = 0.30
QUANTITIES: tuple[Quantity, ...] = ("decode", "prefill", "first token", "load", "draft")
_NO_SPEEDS = frozenset({"first token", "load", "draft"})
# A draft's gain multiplies the speed of decode.
_DECODES = frozenset({"decode", "draft"})
_FORMATS = {"INT4 and FP8": ("int4", "fp8"), "NVFP4": ("nvfp4",), "MXFP4": ("mxfp4",)}
_PARTS = ("one request", "batched", "kt-kernel and vLLM", "llama.cpp", "other engines")


@dataclass(frozen=True)
class Class:
    """A class, or a part of the class `part_of`; without `quantity` it has both quantities."""

    name: str
    part_of: str | None
    quantity: Quantity | None

    @property
    def title(self) -> str:
        """Its name, with its class and quantity."""
        return ", ".join(word for word in (self.part_of, self.name, self.quantity) if word)

    @property
    def aim(self) -> float | None:
        """The aim of the median error."""
        decode = AIMS.get(self.part_of or self.name)
        return decode if decode is None or self.quantity in _DECODES else PREFILL_AIM


@dataclass(frozen=True)
class Figures:
    """Relative errors of the expected value, the share that ranges hold, and their high/low."""

    median_error: float
    mean_error: float
    error_p90: float
    held: float
    high_over_low: float


@dataclass(frozen=True)
class Score:
    """The score of a class: `figures` is None where it is unscored."""

    of: Class
    rows: int
    authors: int
    figures: Figures | None

    @property
    def missed(self) -> list[str]:
        """Say in words which aims are missed."""
        if self.figures is None or self.of.aim is None:
            return []
        f, missed = self.figures, []
        if f.median_error > self.of.aim:
            missed.append(f"median error {f.median_error:.1%}, aim {self.of.aim:.0%}")
        if f.held < MIN_COVERAGE:
            missed.append(f"ranges hold {f.held:.1%}, aim {MIN_COVERAGE:.0%}")
        if self.authors >= WIDTH_AUTHORS and f.high_over_low > MAX_HIGH_OVER_LOW:
            missed.append(f"high/low {f.high_over_low:.3f}, aim {MAX_HIGH_OVER_LOW:g}")
        return missed

    @property
    def verdict(self) -> Literal["met", "missed", "unscored"] | None:
        """Whether the aims are met; None for a class without aims, such as all rows together."""
        if self.of.aim is None:
            return None
        if self.figures is None:
            return "unscored"
        return "missed" if self.missed else "met"


def classify_case(case: Case) -> tuple[str, str]:
    """Name the class of a case, and its part of the class.

    On GPUs a class is a format of weights, and its parts are one request and several. On processors
    the parts are engines: those that this project installs, llama.cpp with its fork, and others
    (older ktransformers, sglang without kt-kernel).
    """
    if case.machine.cpu is None:
        part = "batched" if case.kind == "gpu-batched" else "one request"
        return f"GPU, {_index_formats().get(case.serving.weights, 'other formats')}", part
    engine = case.serving.engine
    part = "kt-kernel and vLLM" if engine in {"ktransformers", "vllm"} else "other engines"
    part = "llama.cpp" if engine in {"llama.cpp", "ik_llama.cpp"} else part
    return "hybrid" if case.machine.gpus else "CPU", part


@cache
def _index_formats() -> dict[WeightFormat, str]:
    return {find_weight_format(word): name for name, words in _FORMATS.items() for word in words}


def split_into_classes(
    items: Sequence[_T], case_of: Callable[[_T], Case]
) -> list[tuple[Class, list[_T]]]:
    """Group items by class and part, without empty ones, then by quantity, and last all of them."""
    classes: list[tuple[Class, list[_T]]] = []
    for quantity in QUANTITIES:
        own = [item for item in items if case_of(item).quantity == quantity]
        for name in AIMS:
            chosen = [item for item in own if classify_case(case_of(item))[0] == name]
            classes.append((Class(name, None, quantity), chosen))
            for part in _PARTS if quantity not in {"load", "draft"} else ():
                some = [item for item in chosen if classify_case(case_of(item))[1] == part]
                classes.append((Class(part, name, quantity), some))
        classes.append((Class("all", None, quantity), own))
    speeds = [item for item in items if case_of(item).quantity not in _NO_SPEEDS]
    classes.append((Class("all", None, None), speeds))
    return [(of, chosen) for of, chosen in classes if chosen]


def count_authors(cases: Iterable[Case]) -> int:
    """Count the different authors of cases."""
    return len({case.author for case in cases})


def score_classes(predictions: Sequence[Prediction]) -> list[Score]:
    """Score every class that has rows."""
    scores = []
    for of, chosen in split_into_classes(predictions, lambda p: p.case):
        count = count_authors(p.case for p in chosen)
        figures = _compute_figures(chosen) if count >= MIN_AUTHORS else None
        scores.append(Score(of, len(chosen), count, figures))
    return scores


def _compute_figures(chosen: Sequence[Prediction]) -> Figures:
    errors = [p.error for p in chosen]
    return Figures(
        median_error=median(errors),
        mean_error=fmean(errors),
        error_p90=quantiles(errors, n=10, method="inclusive")[-1],
        held=fmean(p.is_covered for p in chosen),
        high_over_low=fmean(p.high / p.low for p in chosen),
    )
