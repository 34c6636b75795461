"""What the fit stands on: slopes and inverses."""

import math

import pytest

from kimi_prov.planner.throughput import fit, rows, stored
from kimi_prov.planner.throughput.parameters import list_priors

CASES, _ = rows.read_file(stored.ROWS)


def test_parameters_that_a_row_does_not_read_have_no_slope_and_the_others_their_own():
    """A tenth of a promille up, each parameter in turn, of every row of the catalogue."""
    for case in CASES:
        values = list_priors(fit.choose_priors(case))
        up = [
            fit.predict_seconds(case, {**values, name: value * math.exp(1e-4)})
            for name, value in values.items()
        ]
        own = math.log(fit.predict_seconds(case, values))
        slopes = [(math.log(one) - own) / 1e-4 for one in up]
        assert fit.compute_gradient(case, values, tuple(values)) == slopes


def test_an_inverse_undoes_its_matrix():
    matrix = [[4.0, 1.0, 0.5], [1.0, 3.0, 0.0], [0.5, 0.0, 2.0]]
    inverse = fit.invert_matrix(matrix)
    for i, line in enumerate(matrix):
        for j in range(3):
            product = sum(value * inverse[k][j] for k, value in enumerate(line))
            assert product == pytest.approx(float(i == j), abs=1e-12)
