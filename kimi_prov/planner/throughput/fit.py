"""Fits the parameters to measured cases, and says how sure the result is.

Maximum a posteriori in the logarithms: each parameter has a prior (parameters.Prior), each row a
reading error, each group of rows (one source, one machine) an offset of its own, so that many rows
of one bench weigh little more than one. Rows far off weigh less (Student's t). Gauss-Newton on a
Jacobian by differences; plain lists, since a family has at most two dozen parameters and a few
hundred rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.planner.throughput import physics
from kimi_prov.planner.throughput.parameters import CPU, GPU, Prior, Values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kimi_prov.planner.throughput.cases import Case

Matrix = list[list[float]]

# Log-spread between machines and builds that are equal to the model.
GROUP_SPREAD = 0.18
_FREEDOM = 4.0
_STEP = 1e-4
_ROUNDS = 12
_MAX_RESIDUAL_STEP = 1e-5


@dataclass(frozen=True)
class Fit:
    """Parameters with the covariance of their logarithms, in the order of `names`."""

    names: tuple[str, ...]
    values: Values
    covariance: Matrix

    def variance(self, slopes: Sequence[float]) -> float:
        """Compute the variance of a logarithm from its slopes by the parameters' logarithms."""
        steep = [(i, slope) for i, slope in enumerate(slopes) if slope]
        return sum(a * b * self.covariance[i][j] for i, a in steep for j, b in steep)


def choose_priors(case: Case) -> dict[str, Prior]:
    """Return the parameters of the family that a case belongs to."""
    return GPU if case.machine.cpu is None else CPU


def predict_seconds(case: Case, values: Values) -> float:
    """Predict the seconds for one token of the case's quantity."""
    if case.quantity == "prefill":
        return physics.estimate_prefill(
            case.model, case.machine, case.serving, values, case.prompts
        ).total
    one = physics.estimate_decode(case.model, case.machine, case.serving, values).total
    if case.end_to_end:
        prompt = physics.estimate_prefill(case.model, case.machine, case.serving, values).total
        one += prompt * case.serving.input_tokens / case.serving.output_tokens
    return one


def compute_residual(case: Case, values: Values) -> float:
    """Compute the logarithm of measured over predicted seconds, positive for a slower machine."""
    return -math.log(case.value * predict_seconds(case, values))


class _Watched(dict[str, float]):
    """Parameters that record which of them were read."""

    def __init__(self, values: Values) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> float:
        self.asked.add(name)
        return super().__getitem__(name)


def compute_gradient(case: Case, values: Values, names: Sequence[str]) -> list[float]:
    """Compute the slopes of the predicted seconds by each parameter, both as logarithms."""
    watched = _Watched(values)
    base = math.log(predict_seconds(case, watched))
    slopes = [0.0] * len(names)
    for i, name in enumerate(names):
        if name in watched.asked:
            moved = {**values, name: values[name] * math.exp(_STEP)}
            slopes[i] = (math.log(predict_seconds(case, moved)) - base) / _STEP
    return slopes


def fit_parameters(
    cases: Sequence[Case],
    priors: dict[str, Prior],
    near: Values | None = None,
) -> Fit:
    """Fit the parameters of one family to its cases, beginning from values that are near."""
    names = tuple(priors)
    start = [math.log(priors[name].value) for name in names]
    theta = [math.log(near[name]) for name in names] if near else list(start)
    groups = group_cases(cases)
    covariance: Matrix = []
    for _ in range(_ROUNDS):
        values = {name: math.exp(t) for name, t in zip(names, theta, strict=True)}
        equations = _add_priors(priors, start, theta)
        for group in groups:
            equations.add(_make_group_equations(group, values, names), 1.0)
        covariance = invert_matrix(equations.normal)
        move = _multiply(covariance, equations.pull)
        theta = [t + m for t, m in zip(theta, move, strict=True)]
        if max(abs(m) for m in move) < _MAX_RESIDUAL_STEP:
            break
    values = {name: math.exp(t) for name, t in zip(names, theta, strict=True)}
    return Fit(names, values, covariance)


def fit_without_each(
    cases: Sequence[Case],
    priors: dict[str, Prior],
    full_fit: Fit,
    name_of: Callable[[Case], str],
) -> dict[str, Fit]:
    """Fit the cases without those of each name in turn: one step away from the fit of all.

    Each group of cases has one name (an author, a kind of machine). A name's groups are subtracted
    from the equations, and the rest is solved.
    """
    names = full_fit.names
    theta = [math.log(full_fit.values[name]) for name in names]
    start = [math.log(priors[name].value) for name in names]
    common = _add_priors(priors, start, theta)
    shares: dict[str, list[_Equations]] = {}
    for group in group_cases(cases):
        share = _make_group_equations(group, full_fit.values, names)
        common.add(share, 1.0)
        shares.setdefault(name_of(group[0]), []).append(share)
    fits = {}
    for left_out, mine in shares.items():
        rest = _Equations([list(row) for row in common.normal], list(common.pull))
        for share in mine:
            rest.add(share, -1.0)
        covariance = invert_matrix(rest.normal)
        move = _multiply(covariance, rest.pull)
        values = {n: math.exp(t + m) for n, t, m in zip(names, theta, move, strict=True)}
        fits[left_out] = Fit(names, values, covariance)
    return fits


def group_cases(cases: Sequence[Case]) -> list[list[Case]]:
    """Collect the cases of each group, in the order of their first appearance."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(f"{case.group}|{case.quantity}", []).append(case)
    return list(groups.values())


@dataclass
class _Equations:
    """The normal equations of a step: `normal` times the step is `pull`."""

    normal: Matrix
    pull: list[float]

    def add(self, other: _Equations, sign: float) -> None:
        """Add other equations, or subtract them with a `sign` of -1."""
        for i, row in enumerate(other.normal):
            if any(row):
                mine = self.normal[i]
                self.normal[i] = [a + sign * b for a, b in zip(mine, row, strict=True)]
                self.pull[i] += sign * other.pull[i]


def _add_priors(
    priors: dict[str, Prior], start: Sequence[float], theta: Sequence[float]
) -> _Equations:
    weights = [prior.spread**-2 for prior in priors.values()]
    normal = [[w if i == j else 0.0 for j in range(len(weights))] for i, w in enumerate(weights)]
    pulls = [(s - t) * w for s, t, w in zip(start, theta, weights, strict=True)]
    return _Equations(normal, pulls)


def _make_group_equations(group: list[Case], values: Values, names: Sequence[str]) -> _Equations:
    """Make one group's share of the equations; its common offset is integrated out."""
    size = len(names)
    equations = _Equations([[0.0] * size for _ in names], [0.0] * size)
    common, common_r, total = [0.0] * size, 0.0, GROUP_SPREAD**-2
    for case in group:
        r = compute_residual(case, values)
        slopes = [(i, s) for i, s in enumerate(compute_gradient(case, values, names)) if s]
        weight = (
            (_FREEDOM + 1) / (_FREEDOM + r * r / (case.noise**2 + GROUP_SPREAD**2)) / case.noise**2
        )
        total += weight
        common_r += weight * r
        for i, s in slopes:
            common[i] += weight * s
            equations.pull[i] += weight * s * r
            row = equations.normal[i]
            for j, other in slopes:
                row[j] += weight * s * other
    moved = [(i, c) for i, c in enumerate(common) if c]
    for i, c in moved:
        equations.pull[i] -= c * common_r / total
        row = equations.normal[i]
        for j, other in moved:
            row[j] -= c * other / total
    return equations


def invert_matrix(matrix: Matrix) -> Matrix:
    """Invert a symmetric positive definite matrix, which needs no exchange of pivots."""
    rows = [list(row) for row in matrix]
    for k, row in enumerate(rows):
        pivot = 1 / row[k]
        head = [value * pivot for value in row]
        head[k] = pivot
        for i, other in enumerate(rows):
            factor = other[k]
            if i != k and factor:
                other[k] = 0.0
                rows[i] = [a - factor * b for a, b in zip(other, head, strict=True)]
        rows[k] = head
    return rows


def _multiply(matrix: Matrix, vector: Sequence[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]
