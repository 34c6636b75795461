"""Fits the parameters to measured cases, and says how sure the result is.

Maximum a posteriori in the logarithms: each parameter has a prior (parameters.Prior), each row a
reading error, each group of rows (one source, one machine) an offset of its own, so that many rows
of one bench weigh little more than one. Rows far off weigh less (Student's t). Gauss-Newton on a
Jacobian by differences; plain lists, since there are a dozen parameters and some dozens of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.planner.throughput import physics
from kimi_prov.planner.throughput.parameters import CPU, GPU, Prior, Values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.planner.throughput.cases import Case

Matrix = list[list[float]]

# Log-spread of what sets one machine and build apart from another that the model calls equal.
GROUP = 0.18
_FREEDOM = 4.0
_STEP = 1e-4
_ROUNDS = 12


@dataclass(frozen=True)
class Fit:
    """Parameters with the covariance of their logarithms, in the order of `names`."""

    names: tuple[str, ...]
    values: Values
    covariance: Matrix

    def variance(self, slopes: Sequence[float]) -> float:
        """Variance of a logarithm whose slopes against the parameters' logarithms are given."""
        return sum(
            a * b * self.covariance[i][j]
            for i, a in enumerate(slopes)
            for j, b in enumerate(slopes)
        )


def family(case: Case) -> dict[str, Prior]:
    """Return the parameters that speak about a case."""
    return GPU if case.machine.cpu is None else CPU


def seconds(case: Case, values: Values) -> float:
    """Seconds for one token of what the case measured."""
    if case.quantity == "prefill":
        return physics.prefill(case.model, case.machine, case.serving, values).total
    one = physics.decode(case.model, case.machine, case.serving, values).total
    if case.end_to_end:
        prompt = physics.prefill(case.model, case.machine, case.serving, values).total
        one += prompt * case.serving.input_tokens / case.serving.output_tokens
    return one


def residual(case: Case, values: Values) -> float:
    """Logarithm of measured over predicted seconds: positive where the machine was slower."""
    return -math.log(case.value * seconds(case, values))


def gradient(case: Case, values: Values, names: Sequence[str]) -> list[float]:
    """Slopes of the logarithm of the predicted seconds against each parameter's logarithm."""
    base = math.log(seconds(case, values))
    slopes = []
    for name in names:
        moved = {**values, name: values[name] * math.exp(_STEP)}
        slopes.append((math.log(seconds(case, moved)) - base) / _STEP)
    return slopes


def fit(
    cases: Sequence[Case],
    priors: dict[str, Prior],
    near: Values | None = None,
    rounds: int = _ROUNDS,
) -> Fit:
    """Fit the parameters of one family to its cases; `near` is where to start looking."""
    names = tuple(priors)
    start = [math.log(priors[name].value) for name in names]
    theta = [math.log((near or {}).get(name, priors[name].value)) for name in names]
    normal: Matrix = []
    for _ in range(rounds):
        values = {name: math.exp(t) for name, t in zip(names, theta, strict=True)}
        normal = [[0.0] * len(names) for _ in names]
        pull = [0.0] * len(names)
        for i, name in enumerate(names):
            normal[i][i] = priors[name].spread ** -2
            pull[i] = (start[i] - theta[i]) * normal[i][i]
        for group in grouped(cases):
            _add_group(group, values, names, normal, pull)
        move = solve(normal, pull)
        theta = [t + m for t, m in zip(theta, move, strict=True)]
        if max(abs(m) for m in move) < 1e-6:
            break
    values = {name: math.exp(t) for name, t in zip(names, theta, strict=True)}
    return Fit(names, values, inverse(normal))


def grouped(cases: Sequence[Case]) -> list[list[Case]]:
    """Put cases of one group together, in the order of first appearance."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(f"{case.group}|{case.quantity}", []).append(case)
    return list(groups.values())


def _add_group(
    group: list[Case], values: Values, names: Sequence[str], normal: Matrix, pull: list[float]
) -> None:
    """Add one group's share to the normal equations; its common offset is integrated out."""
    left = [residual(case, values) for case in group]
    slopes = [gradient(case, values, names) for case in group]
    weights = [
        (_FREEDOM + 1) / (_FREEDOM + r * r / (case.noise**2 + GROUP**2)) / case.noise**2
        for r, case in zip(left, group, strict=True)
    ]
    total = GROUP**-2 + sum(weights)
    everyone = range(len(names))
    common = [sum(w * s[i] for w, s in zip(weights, slopes, strict=True)) for i in everyone]
    common_r = sum(w * r for w, r in zip(weights, left, strict=True))
    for w, s, r in zip(weights, slopes, left, strict=True):
        for i in everyone:
            if s[i]:
                weighted = w * s[i]
                pull[i] += weighted * r
                normal[i] = [n + weighted * other for n, other in zip(normal[i], s, strict=True)]
    for i in everyone:
        pull[i] -= common[i] * common_r / total
        normal[i] = [
            n - common[i] * other / total for n, other in zip(normal[i], common, strict=True)
        ]


def solve(matrix: Matrix, right: Sequence[float]) -> list[float]:
    """Solve a symmetric positive definite system by Gauss-Jordan elimination."""
    size = len(matrix)
    rows = [[*line, right[i]] for i, line in enumerate(matrix)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda r: abs(rows[r][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        head = rows[column][column]
        rows[column] = [value / head for value in rows[column]]
        for r in range(size):
            if r != column and rows[r][column]:
                factor = rows[r][column]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[column], strict=True)]
    return [row[-1] for row in rows]


def inverse(matrix: Matrix) -> Matrix:
    """Invert a small symmetric matrix, column by column."""
    size = len(matrix)
    columns = [solve(matrix, [float(i == j) for i in range(size)]) for j in range(size)]
    return [[columns[j][i] for j in range(size)] for i in range(size)]
