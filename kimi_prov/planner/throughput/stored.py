"""The fitted coefficients as the planner reads them: fitting takes seconds, this milliseconds."""

from __future__ import annotations

import json
from functools import cache

from kimi_prov.planner.throughput.calibrate import Model
from kimi_prov.planner.throughput.fit import Fit
from kimi_prov.planner.throughput.subjects import CATALOGUE

ROWS = CATALOGUE / "speeds.yaml"
COEFFICIENTS = CATALOGUE / "speed_coefficients.json"
_DIGITS = 6


def render(models: dict[str, Model]) -> str:
    """Write the models as JSON, rounded so that every platform gives the same text."""
    document: dict[str, object] = {"schema": "kimi-prov/catalog/speed-coefficients/v1"}
    for name, model in models.items():
        document[name] = {
            "values": {key: _round(value) for key, value in model.fit.values.items()},
            "covariance": [[_round(v) for v in row] for row in model.fit.covariance],
            "widths": {key: _round(value) for key, value in model.widths.items()},
        }
    return json.dumps(document, indent=1) + "\n"


def write(models: dict[str, Model]) -> None:
    """Store the coefficients in the catalogue."""
    COEFFICIENTS.write_text(render(models), encoding="utf-8")


@cache
def load() -> dict[str, Model]:
    """Read the stored coefficients."""
    document = json.loads(COEFFICIENTS.read_text(encoding="utf-8"))
    return {
        name: Model(Fit(tuple(part["values"]), part["values"], part["covariance"]), part["widths"])
        for name, part in document.items()
        if name != "schema"
    }


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
